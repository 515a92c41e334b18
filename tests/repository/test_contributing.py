"""The examples of CONTRIBUTING.md work: a new file and a line in a table are enough."""

import json
import shutil
from functools import partial

import pyarrow
import torch
import transformers

from pgcli import inputs
from pgcli.checkpoints import families
from pgcli.checkpoints.model_description import read_kind
from pgcli.cli.main import main
from pgcli.evaluation import metrics
from pgcli.evaluation.evaluate import measured_values
from pgcli.evaluation.joined_row import JoinedRow, RowTruth
from pgcli.inputs import Inventory, readers, tables
from pgcli.results import exports
from tests.support.contributing import install_output_format, installed
from tests.support.exporting import detected, make_images, saved
from tests.support.stub_runs import Calls, die, finish, rows_of, start
from tests.support.stub_runs import make_images as make_broken_images
from tests.support.towers import LABELS, TINY, TINY_IMAGE, load_from, spread


def test_manifest_kind_needs_a_file_and_a_line(tmp_path, monkeypatch):
    installed("One more kind of manifest", inputs, readers.READERS, monkeypatch)
    monkeypatch.setattr(tables, "EVERY", 2)
    make_images(tmp_path)
    (tmp_path / "few.lst").write_text("a.png\n\nsub/c.png\n../b.jpg\n")
    for name in ("few.lst", "*.lst"):
        inventory = Inventory.scan([str(tmp_path / name)])
        items = list(inventory)
        assert inventory.total == 3
        paths = [str(tmp_path / "a.png"), str(tmp_path / "sub" / "c.png"), None]
        assert [item.path for item in items] == paths
        assert items[2].fault is not None
        assert items[2].fault.code == "path_not_allowed"
        assert [list(inventory.items(n, n + 1)) for n in range(3)] == [[item] for item in items]
    with (tmp_path / "few.lst").open("a") as file:
        file.write("d.png\n")
    grown = Inventory.scan([str(tmp_path / "*.lst")], known=inventory)
    assert [item.id for item in grown][3:] == ["d.png"]
    assert inventory.kinds == {"rows of .lst": 3}


def test_output_format_needs_a_file_and_a_line(tmp_path, monkeypatch):
    """Runs that are killed before a write go on, in one process and in two engines."""
    install_output_format(patch=monkeypatch)
    make_broken_images(tmp_path / "images", 8, broken=[3])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    assert finish(whole, "rows.jsonl")[0] == 3
    rows = rows_of(whole, "rows.jsonl")
    for options in ({}, {"engines": 2}):
        for number in range(5, 70, 13):
            shutil.rmtree(killed, ignore_errors=True)
            killed.mkdir()
            before = partial(install_output_format, Calls(number, die))
            start(killed, "rows.arrows", before=before, **options).wait()
            assert set(rows_of(killed, "rows.arrows")) <= set(rows)
            code, said = finish(killed, "rows.arrows", before=install_output_format, **options)
            assert (code, rows_of(killed, "rows.arrows")) == (3, rows), said
    with pyarrow.ipc.open_stream(killed / "rows.arrows") as stream:
        assert stream.read_all()["answer"].null_count == 2
    assert finish(killed, "rows.arrows", before=install_output_format, limit=3)[0] == 3
    assert main(["merge", str(killed / "rows.arrows"), "-o", str(tmp_path / "all.arrows")]) == 3
    assert rows_of(tmp_path, "all.arrows") == rows


def test_export_format_needs_a_file_and_a_line(tmp_path, monkeypatch):
    installed("One more export format", exports, exports.FORMATS, monkeypatch)
    rows = saved(tmp_path / "rows.jsonl", detected(make_images(tmp_path)))
    made = tmp_path / "made.jsonl"
    assert main(["export", str(rows), "--to", "boxes", "-o", str(made)]) == 0
    lines = [json.loads(line) for line in made.read_text().splitlines()]
    assert [line["label"] for line in lines] == [
        box["label"] for row in map(json.loads, rows.open()) for box in row["boxes"]
    ]
    assert all(len(line["box"]) == 4 for line in lines)


def test_metric_needs_a_file_and_a_line(monkeypatch):
    installed("One more metric", metrics, metrics.METRICS, monkeypatch)
    truth = RowTruth(("cat",))
    rows = [JoinedRow(answer, "what?", {"answer": answer}, truth) for answer in ("A cat.", "a dog")]
    assert measured_values(rows, "contains") == {"contains": 0.5}


def test_family_of_checkpoints_needs_a_file_and_a_line(tmp_path, monkeypatch):
    installed("One more family of checkpoints", families, families.FAMILIES, monkeypatch)
    config = transformers.ViTMSNConfig(**TINY, **TINY_IMAGE, **LABELS)
    reference = spread(transformers.ViTMSNForImageClassification(config))
    reference.save_pretrained(tmp_path)
    assert read_kind(tmp_path) == "classifier"
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found = load_from(tmp_path)(pixels)
        torch.testing.assert_close(found, reference(pixels).logits, atol=1e-5, rtol=0)
