"""export: refusals, reports, and files that stay unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgcli.registry import BUILT_IN
from pgcli.stores.writing import MARK
from tests.support.exporting import box, captioned, detected, exported, make_images, of, row, saved


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_images(tmp_path / "images")


@pytest.fixture
def boxes(folder, tmp_path) -> Path:
    return saved(tmp_path / "boxes.jsonl", detected(folder))


@pytest.fixture
def captions(folder, tmp_path) -> Path:
    return saved(tmp_path / "captions.jsonl", captioned(folder, "one", "two", "three"))


def files(folder: Path) -> dict[str, str]:
    found = [file for file in folder.rglob("*") if file.suffix in (".txt", ".caption")]
    return {str(file.relative_to(folder)): file.read_text() for file in found}


def test_texts_of_names_with_dots_stay_in_the_folder(cli, tmp_path):
    ids = ["../../up.png", "/etc/passwd", "a/../../b.png", "C:\\x.png"]
    rows = [row(index, id=id_, image=id_) for index, id_ in enumerate(ids)]
    (tmp_path / "in").mkdir()
    output = tmp_path / "in" / "texts"
    assert exported(cli, saved(tmp_path / "r.jsonl", rows), "txt", output)[0] == 0
    assert len(files(output)) == 4
    assert len(files(tmp_path)) == 4


def test_other_files_get_no_text_and_no_link(cli, folder, tmp_path):
    (folder / "secret").write_text("of the user's")
    (folder / "picture").write_bytes((folder / "b.jpg").read_bytes())  # a name without an ending
    rows = [
        of(1, folder, id=name, image=str(folder / name), task="detect")
        for name in ("secret", "picture")
    ]
    file = saved(tmp_path / "r.jsonl", rows)
    assert exported(cli, file, "txt", None)[0] == 3
    assert files(folder).keys() == {"picture.txt"}
    assert exported(cli, file, "yolo", tmp_path / "yolo")[0] == 3
    assert [link.name for link in (tmp_path / "yolo" / "images").iterdir()] == ["picture.jpg"]


ODD = ["a\0b.png", "", "/", ".", "..", "file:%FF%00.png", "http://x/y.png", "x" * 5000 + ".png"]
ODD += ["shard.tar/a.jpg", "\ud800.png", "a/\n.png", "c:\\x.jpg", "file:///etc/hostname"]


@pytest.mark.parametrize("name", ["", " ", "\u00a0"])
def test_row_without_a_name_is_named_in_messages(cli, folder, tmp_path, name):
    rows = [of(0, folder, id=name), of(1, folder, id=name)]
    _, err = exported(cli, saved(tmp_path / "r.jsonl", rows), "txt", tmp_path / "texts")
    assert "renamed" not in err
    assert sorted(files(tmp_path / "texts")) == ["1.txt", "2.txt"]
    lost = saved(tmp_path / "l.jsonl", [row(0, id=name, image=name)])
    _, err = exported(cli, lost, "imagefolder", tmp_path / "copies")
    assert f"the first skipped image: {name!r}: The " in err


@pytest.mark.parametrize("to", BUILT_IN["exports"])
def test_any_image_name_in_a_row_is_handled(cli, tmp_path, monkeypatch, to):
    monkeypatch.chdir(tmp_path)
    plain = row(0, task="detect", boxes=(box("cat", 1.0, 2.0, 30.0, 40.0),))
    rows = [plain | {"index": i, "id": name, "image": name} for i, name in enumerate(ODD)]
    file = saved(tmp_path / "r.jsonl", rows)
    assert exported(cli, file, to, tmp_path / "out")[0] in (0, 3)
    if to in ("txt", "caption"):
        assert exported(cli, file, to, None)[0] == 3
    if to in ("coco", "labelstudio"):
        assert exported(cli, file, to, tmp_path / "again", "--images", "/")[0] == 2
    assert not Path("/etc/hostname.txt").exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"boxes": [{"label": "cat"}]},
        {"boxes": [{"label": 1, "xmin": 0, "ymin": 0, "xmax": 1, "ymax": 1}]},
        {"boxes": [{"label": "a", "xmin": float("nan"), "ymin": 0, "xmax": 1, "ymax": 1}]},
        {"boxes": None},
        {"boxes": [{"label": "a", "xmin": 0, "ymin": False, "xmax": 1, "ymax": True}]},
        {"width": 10**400},
        {"height": True},
        {"width": 0},
        {"height": None},
        {"answer": 7},
        {"id": None},
        {"masks": [{"codes": [], "rle": {"size": [64, 48], "counts": "PP3"}}]},
        {"masks": [{"codes": [], "rle": {"size": [10**6, 10**6], "counts": "0"}}]},
        {"masks": [{"codes": [], "rle": {"size": [48, 64], "counts": "nonsense"}}]},
        {"masks": ["x"]},
    ],
)
def test_a_damaged_row_is_named_and_nothing_is_written(cli, folder, tmp_path, damage):
    rows = detected(folder)
    file = saved(tmp_path / "r.jsonl", [rows[1], rows[0] | damage])
    code, err = exported(cli, file, "coco", tmp_path / "o.json")
    assert code == 2
    assert "row 2 is not a result row" in err
    assert not (tmp_path / "o.json").exists()


@pytest.mark.parametrize("to", sorted(BUILT_IN["exports"].keys() - {"txt", "caption"}))
def test_export_takes_any_valid_file_name(cli, boxes, tmp_path, to):
    for name in ("\u00e9" * 127,):
        assert exported(cli, boxes, to, tmp_path / name)[0] == 0
        code, err = exported(cli, boxes, to, tmp_path / name)
        assert (code, "--overwrite replaces it" in err) == (13, True)
        assert exported(cli, boxes, to, tmp_path / name, "--overwrite")[0] == 0
        assert (tmp_path / name).exists()
    assert not [file for file in tmp_path.iterdir() if file.name.endswith((".part", ".old"))]


def test_a_killed_export_leaves_nothing_under_the_output_s_name(boxes, tmp_path):
    code = (
        "import os, signal, sys\n"
        "from pgcli.results.exports import annotations\n"
        "annotations.instance = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "from pgcli.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = ["export", str(boxes), "--to", "coco", "-o", str(tmp_path / "o.json")]
    run = subprocess.run([sys.executable, "-c", code, *command], check=False, timeout=100)
    assert run.returncode == -15
    assert sorted(file.name for file in tmp_path.iterdir()) == ["boxes.jsonl", "images"]


@pytest.mark.parametrize("to", ["yolo", "coco"])
def test_part_that_a_killed_process_left_is_no_hindrance(cli, boxes, to):
    target = boxes.parent / "made"
    left = boxes.parent / f".made.{os.getpid()}.part"  # of a process with the same number
    left.mkdir()
    (left / MARK).touch()
    assert exported(cli, boxes, to, target)[0] == 0
    assert target.exists()


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path):
    found = tuple(box(label, 1.0, 2.0, 30.0, 40.0) for label in ("cat", "dog"))
    line = json.dumps(row(0, task="detect", boxes=found))
    code = (
        "import resource, sys\n"
        "from pgcli.cli.main import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for count in (1_000, 60_000):
        rows = tmp_path / f"{count}.jsonl"
        with open(rows, "w") as file:
            for index in range(count):
                file.write(line.replace('"index": 0', f'"index": {index}') + "\n")
        command = ["export", str(rows), "--to", "coco", "-o", str(tmp_path / f"{count}.json"), "-q"]
        run = [sys.executable, "-c", code, *command]
        peaks.append(int(subprocess.check_output(run, timeout=100).split()[-1]))
    # the names that are taken: some hundred bytes each
    assert peaks[1] - peaks[0] < 30_000
