"""Edits and foreign annotation files, with any value anywhere."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgcli.cli.main import main
from pgcli.rows import answer_digest
from tests.support.awkward import HOSTILE, paths, replace_at, to_text
from tests.support.exporting import make_images, plain, saved, segmented

#: Success, usage error, skipped images or edits, nothing to import.
DOCUMENTED = {0, 2, 3, 4}
KINDS = ("coco", "labelstudio", "edits")


def seed(kind: str) -> Any:
    """A valid document of the kind, in the working folder."""
    Path("photos").mkdir()
    rows = saved(Path("rows.jsonl"), segmented(make_images(Path("photos"))))
    if kind == "edits":
        first, second, _ = (json.loads(line) for line in rows.read_text().splitlines())
        keys = [
            {name: row[name] for name in ("index", "id", "prompt")}
            | {"digest": answer_digest(row), "state": "accepted"}
            for row in (first, second)
        ]
        box = {"label": "a", "xmin": 1.5, "ymin": 2, "xmax": 9, "ymax": 8, "source": 0}
        edits = [keys[0] | {"boxes": [box]}, keys[1] | {"boxes": [box, box | {"source": None}]}]
        return {"format": "pgcli edits", "version": 1, "edits": edits}
    assert (
        main(["export", "rows.jsonl", "--to", kind, "-o", "made.json", "--images", "photos"]) == 0
    )
    document = json.loads(Path("made.json").read_text())
    if kind == "coco":
        square = [[1.0, 1, 9, 1, 9, 9]]
        document["annotations"][1]["segmentation"] = square
        document["annotations"][2]["segmentation"] = {"size": [40, 40], "counts": [0, 1600]}
        return document
    points = {"points": [[1, 1], [50, 1], [50, 50]], "polygonlabels": ["dog"]}
    ellipse = {"x": 50, "y": 50, "radiusX": 9, "radiusY": 9, "rotation": 7, "ellipselabels": ["a"]}
    shared = {"original_width": 64, "original_height": 48}
    document[0]["annotations"] = document[0].pop("predictions")
    document[0]["annotations"][0]["result"] += [
        shared | {"type": "polygonlabels", "value": points},
        shared | {"type": "ellipselabels", "value": ellipse},
        {"type": "textarea", "value": {"text": ["a text"]}},
    ]
    return document


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_anywhere_has_a_documented_exit_code(kind, data, tmp_path_factory, monkeypatch):
    if kind not in SEEDS:
        monkeypatch.chdir(tmp_path_factory.mktemp(kind))
        SEEDS[kind] = (Path.cwd(), seed(kind))
    folder, document = SEEDS[kind]
    monkeypatch.chdir(folder)
    changed = deepcopy(document)
    path = data.draw(st.sampled_from([*paths(document)]))
    replace_at(changed, path, data.draw(st.sampled_from(HOSTILE)))
    Path("hostile.json").write_text(to_text(changed), encoding="utf-8")
    words = ["import", "hostile.json", "--from", kind, "--images", "photos"]
    if kind == "edits":
        words = ["apply", "hostile.json", "rows.jsonl"]
    Path("new.jsonl").unlink(missing_ok=True)
    code = main([*words, "-o", "new.jsonl", "-q"])
    assert code in DOCUMENTED, path
    assert Path("new.jsonl").exists() == (code in (0, 3))


SEEDS: dict[str, tuple[Path, Any]] = {}
LINES = ["0 0.5 0.5 0.5 0.5", "1 0 0 0.5 0 0.5 0.5", "names: [a]", "- x", "&a", "*a", "1e999", "\0"]


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    labels=st.lists(st.sampled_from(LINES), max_size=4),
    names=st.lists(st.sampled_from(LINES), max_size=4),
)
def test_any_text_in_a_folder_of_yolo_has_a_documented_exit_code(
    labels, names, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if not Path("yolo").exists():
        Path("photos").mkdir()
        saved(Path("rows.jsonl"), plain(make_images(Path("photos"))))
        assert main(["export", "rows.jsonl", "--to", "yolo", "-o", "yolo", "-q"]) == 0
    Path("yolo/labels/a.txt").write_text("\n".join(labels))
    Path("yolo/data.yaml").write_text("\n".join(names))
    words = ["import", "yolo", "--from", "yolo", "-o", "new.jsonl", "--overwrite", "-q"]
    assert main(words) in DOCUMENTED
