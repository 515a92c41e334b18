"""Plug-ins: packages add formats and metrics; a broken one costs a warning."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pyarrow
import pytest

from pgcli import registry
from pgcli.cli.main import main
from pgcli.inputs import Inventory, tables
from tests.support.exporting import detected, make_images, saved
from tests.support.plugins import install_arrows, install_plugins
from tests.support.stub_runs import Calls, die, finish, rows_of, start
from tests.support.stub_runs import make_images as make_broken_images

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"
PLUGINS = "tests.support.plugins"


@pytest.mark.parametrize("group", registry.BUILT_IN)
def test_every_built_in_name_can_be_loaded(group):
    for name in registry.BUILT_IN[group]:
        assert registry.load(group, name) is not None


def test_example_package_exports_pascal_voc(tmp_path):
    site, rows = tmp_path / "site", saved(tmp_path / "rows.jsonl", detected(make_images(tmp_path)))
    source = shutil.copytree(EXAMPLE, tmp_path / "source")  # building writes into it
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(site)]
    run([sys.executable, "-m", "pip", "install", *options, str(source)])
    command = ["export", str(rows), "--to", "VOC", "-o", str(tmp_path / "voc")]
    program = f"import sys; sys.path.insert(0, {str(site)!r}); from pgcli.cli.main import main; "
    said = run([sys.executable, "-c", f"{program} sys.exit(main({command!r}))"])
    assert "exported" in said
    for row in map(json.loads, rows.open()):
        file = (tmp_path / "voc" / row["id"]).with_suffix(".xml")
        voc = ElementTree.parse(file).getroot()
        assert [int(voc.findtext(f"size/{name}")) for name in ("width", "height")] == [
            row["width"],
            row["height"],
        ]
        assert [found.findtext("name") for found in voc.iter("object")] == [
            box["label"] for box in row["boxes"]
        ]
        for found, box in zip(voc.iter("bndbox"), row["boxes"], strict=True):
            assert int(found.findtext("xmin")) == pytest.approx(box["xmin"] + 1, abs=0.5)
            assert int(found.findtext("ymax")) == pytest.approx(box["ymax"], abs=0.5)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_broken_plugins_cost_a_warning_each(tmp_path, monkeypatch, cli):
    install_plugins(
        {
            "exports missing": "no_such_module:FORMAT",
            "exports table": f"{PLUGINS}:ARROW",
            "exports coco": f"{PLUGINS}:ARROW",
            "manifests .lst": f"{PLUGINS}:ARROW",
        },
        monkeypatch,
    )
    rows = saved(tmp_path / "rows.jsonl", detected(make_images(tmp_path)))
    with pytest.warns(UserWarning, match="from pgcli-plugins is ignored") as said:
        code, _, _ = cli("export", rows, "--to", "coco", "-o", tmp_path / "boxes.json")
    assert code == 0
    assert len(said) == 4
    assert registry.names("manifests") == list(registry.BUILT_IN["manifests"])
    reasons = {str(one.message).partition(" is ignored: ")[2] for one in said}
    assert reasons == {
        "ModuleNotFoundError: No module named 'no_such_module'",
        "TypeError: it is not a pgcli.results.exports.rows.ExportFormat",
        "TypeError: it is not a pgcli.inputs.tables.Table",
        "ValueError: another one has this name",
    }
    code, _, said = cli("export", rows, "--to", "missing", "-o", tmp_path / "made")
    assert code == 2
    assert "must be one of coco, yolo" in said


def test_help_scans_no_packages(monkeypatch, cli):
    monkeypatch.setattr("importlib.metadata.entry_points", pytest.fail)
    assert cli("--help")[0] == 0
    assert cli("export", "--help")[0] == 0


def test_plugin_reads_manifests_of_its_ending(tmp_path, monkeypatch):
    install_plugins({"manifests .lst": f"{PLUGINS}:ListTable"}, monkeypatch)
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


def test_plugin_writes_outputs_of_its_ending(tmp_path, monkeypatch):
    """Runs that are killed before a write resume, in one process and in two engines."""
    install_plugins({"outputs .arrows": f"{PLUGINS}:ARROW"}, monkeypatch)
    make_broken_images(tmp_path / "images", 8, broken=[3])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    assert finish(whole, "rows.jsonl")[0] == 3
    rows = rows_of(whole, "rows.jsonl")
    for options in ({}, {"engines": 2}):
        for number in range(5, 70, 13):
            shutil.rmtree(killed, ignore_errors=True)
            killed.mkdir()
            before = partial(install_arrows, Calls(number, die))
            start(killed, "rows.arrows", before=before, **options).wait()
            assert set(rows_of(killed, "rows.arrows")) <= set(rows)
            code, said = finish(killed, "rows.arrows", before=install_arrows, **options)
            assert (code, rows_of(killed, "rows.arrows")) == (3, rows), said
    with pyarrow.ipc.open_stream(killed / "rows.arrows") as stream:
        assert stream.read_all()["answer"].null_count == 2
    assert finish(killed, "rows.arrows", before=install_arrows, limit=3)[0] == 3
    assert main(["merge", str(killed / "rows.arrows"), "-o", str(tmp_path / "all.arrows")]) == 3
    assert rows_of(tmp_path, "all.arrows") == rows


def test_plugin_adds_a_metric_and_an_import_format(tmp_path, monkeypatch, cli):
    install_plugins(
        {
            "metrics contains": f"{PLUGINS}:CONTAINS",
            "imports whole": f"{PLUGINS}:WHOLE",
        },
        monkeypatch,
    )
    make_images(tmp_path)
    (tmp_path / "labels.txt").write_text("cat a.png\ndog b.jpg\n")
    truth = tmp_path / "truth.jsonl"
    names = ["import", tmp_path / "labels.txt", "--from", "whole", "--images", tmp_path]
    assert cli(*names, "-o", truth)[0] == 0
    rows = [json.loads(line) for line in truth.open()]
    assert [box["label"] for row in rows for box in row["boxes"]] == ["cat", "dog"]
    _, measured, _ = cli("eval", truth, "--truth", truth, "--metric", "contains", "--json")
    assert json.loads(measured)["metrics"]["contains"]["value"] == 1.0
