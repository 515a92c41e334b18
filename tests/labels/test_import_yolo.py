"""YOLO's lines are read as Ultralytics reads them, and ambiguous lines are errors."""

from pathlib import Path

import pytest
from PIL import Image

from pgcli.errors import UsageError
from pgcli.labels.labelled_image import Labels, LabelSettings
from pgcli.labels.sources import read_upright
from tests.support.exporting import read_rows

NAMES = "names: [cat, dog]\n"
#: Lists of lists, by YAML's aliases: ten billion values when written out.
BOMB = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]\n" for n in range(1, 11))
BOX = (24.0, 18.0, 40.0, 30.0)  # 0.5 0.5 0.25 0.25 of 64 x 48


def read(folder: Path, data: bytes | str = NAMES, **labels: bytes | str) -> Labels:
    """The annotations of a folder with an image for each file of labels."""
    for name in ("images", "labels"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "data.yaml").write_bytes(data if isinstance(data, bytes) else data.encode())
    for name, lines in labels.items():
        Image.new("RGB", (64, 48)).save(folder / "images" / f"{name}.png")
        content = lines if isinstance(lines, bytes) else lines.encode()
        (folder / "labels" / f"{name}.txt").write_bytes(content)
    return read_upright("yolo", folder, LabelSettings(folder))


@pytest.mark.parametrize(
    ("data", "lines", "expected"),
    [
        (NAMES, "0 0.5 0.5 0.25 0.25 0.5", [("cat", *BOX, 0.5)]),
        (NAMES, "0 0 0 0.5 0 0.5 1", [("cat", 0, 0, 32, 48, 1)]),
        (NAMES, "0 0.25 0.25 0.75 0.5 0.5 1\n0 0 0 0.5 0 0.5 0.5",
         [("cat", 16, 12, 48, 48, 1), ("cat", 0, 0, 32, 24, 1)]),
        (NAMES, "1 0.25 0 0.5 0.25 0.25 0.5 0 0.25", [("dog", 0, 0, 32, 24, 1)]),
        (NAMES, "1 0.25 0 0.5 0.25 0.25 0.5 0 0.25 0.75", [("dog", 0, 0, 32, 24, 0.75)]),
        (NAMES, "1.0 0.5 0.5 0.25 0.25", [("dog", *BOX, 1)]),
        (NAMES, b"\xef\xbb\xbf1\t5e-1 .5 0.25\t0.25\r\n\r\n", [("dog", *BOX, 1)]),
        (b"\xef\xbb\xbf" + NAMES.encode(), "0 0.5 0.5 1.0000001 1.005", [("cat", 0, 0, 64, 48, 1)]),
        (NAMES, "0 -0.0001 0.5 0.5 1", [("cat", 0, 0, 15.9936, 48, 1)]),
        ("names: {'1': dog, '0': cat}", "1 0.5 0.5 0.25 0.25", [("dog", *BOX, 1)]),
        (NAMES, "", []),
    ],
)  # fmt: skip
def test_lines_are_boxes_and_polygons(tmp_path, data, lines, expected):
    (image,) = read(tmp_path, data, a=lines).images
    assert [(box.label, *box.corners, box.confidence) for box in image.boxes] == expected
    assert all(box.score == box.confidence for box in image.boxes)


@pytest.mark.parametrize(
    ("data", "lines", "message"),
    [
        (NAMES, "1 8 4 28 14", "line 1: 8 is not a fraction of the image's side"),
        (NAMES, "\n0 0.5 0.5 0.5 1.02", "line 2: 1.02 is not a fraction"),
        (NAMES, "0 0.5 0.5 -0.25 0.25", "line 1: -0.25 is not a fraction"),
        (NAMES, "0 0 0 64 0 64 48 0 48", "line 1: 64 is not a fraction"),
        (NAMES, "0 0.5 0.5 0.25 0.25 7", "line 1: 7 is not a confidence"),
        (NAMES, "0 0.5 0.5 0.25 0.25 55 7", "line 1: 55 is not a fraction"),
        (NAMES, "0 0.5 0.5 0.25 0.25 0.9 7", "line 1: 6 numbers are a triangle, or a box with its"),
        (NAMES, "0 0.5 0.5 0.25 0.25 0.9 1", "a track id: remove the track ids"),
        (NAMES, "0 0.5 0.5 0.25 0.25 0.1 0.1 2", "line 1: 7 numbers after the class do not make"),
        (NAMES, "0,0.5,0.5,0.25,0.25", "line 1: '0,0.5,0.5,0.25,0.25' is not a number"),
        (NAMES, "# a comment", "line 1: '#' is not a number"),
        (NAMES, "0 0.5 0.5 nan 0.25", "line 1: 'nan' is not a number"),
        (NAMES, "0 0.5 0.5 1e999 0.25", "line 1: '1e999' is not a number"),
        (NAMES, "1.5 0.5 0.5 0.25 0.25", "line 1: the class 1.5 has no name"),
        (NAMES, "2 0.5 0.5 0.25 0.25", "line 1: the class 2 has no name"),
        (BOMB + "kpt_shape: [*a9, 3]\n" + NAMES, "", "data.yaml: 'kpt_shape' names keypoints"),
    ],
)  # fmt: skip
def test_ambiguous_lines_are_errors(tmp_path, data, lines, message):
    with pytest.raises(UsageError) as problem:
        read(tmp_path, data, a=lines)
    assert message in str(problem.value)
    assert str(tmp_path / "labels" / "a.txt") in str(problem.value) or "data.yaml" in message


def test_files_of_macos_and_windows_and_names_are_no_labels(tmp_path):
    read(tmp_path, a="0 0.5 0.5 0.25 0.25")
    for name in ("._a.png", ".DS_Store", "Thumbs.db"):
        (tmp_path / "images" / name).write_bytes(b"\0\5\x16\7")
    for name in ("._a.txt", ".DS_Store", "classes.txt"):
        (tmp_path / "labels" / name).write_bytes(b"\0\5\x16\7")
    settings = LabelSettings(tmp_path)
    assert [image.id for image in read_upright("yolo", tmp_path, settings).images] == ["a.png"]
    assert settings.counts.images[0] == 0


@pytest.mark.parametrize("name", ["classes.txt", "elsewhere.yml"])
def test_other_files_name_the_classes(tmp_path, name):
    read(tmp_path, a="0 0.5 0.5 0.25 0.25")
    (tmp_path / "data.yaml").unlink()
    content = "names: [owl, bat]" if "ml" in name else "owl\nbat\n"
    (tmp_path / name).write_text(content)
    file = tmp_path / name if name == "elsewhere.yml" else tmp_path
    assert read_upright("yolo", file, LabelSettings(tmp_path)).labels == ["owl", "bat"]


@pytest.mark.parametrize("names", ["owl\n\nbat\n", "\nbat\n"])
def test_blank_line_between_class_names_is_an_error(tmp_path, names):
    """It shifts the numbers of the classes in some tools only."""
    read(tmp_path, a="1 0.5 0.5 0.25 0.25")
    (tmp_path / "data.yaml").unlink()
    (tmp_path / "classes.txt").write_text(names)
    with pytest.raises(UsageError, match=r"class \d is empty"):
        read_upright("yolo", tmp_path, LabelSettings(tmp_path))


@pytest.mark.parametrize(
    ("image", "labels", "needed"),
    [
        ("images/a.png", "annotations/a.txt", "labels/a.txt"),
        ("Images/a.png", "Labels/a.txt", "Images/a.txt"),
        ("images/a.png", "images/a.txt", "labels/a.txt"),
        ("images/a.png", "labels/A.txt", "labels/a.txt"),
        ("images/a.png", "labels/a.png.txt", "labels/a.txt"),
    ],
)
def test_image_whose_labels_are_elsewhere_is_not_an_image_of_nothing(
    cli, workdir, image, labels, needed
):
    for name in (image, labels):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 48)).save(image)
    Path(labels).write_text("0 0.5 0.5 0.25 0.25")
    Path("data.yaml").write_text(NAMES)
    words = ("import", ".", "--from", "yolo", "-o", "truth.jsonl")
    code, _, err = cli(*words)
    assert code == 2
    assert "no image in . has a label file" in err
    assert f"hint: {image} needs {needed}; rename {labels}" in err
    Image.new("RGB", (64, 48)).save("b.png")
    Image.new("RGB", (64, 48)).save("c.png")
    Path("b.txt").write_text("1 0.5 0.5 0.25 0.25")
    code, _, err = cli(*words)
    assert code == 3
    assert "1 image without a row of boxes" in err
    assert f"{labels}: There is no image for this label file." in err
    boxes = {row["id"]: [box["label"] for box in row["boxes"]] for row in read_rows("truth.jsonl")}
    assert boxes == {"b.png": ["dog"], "c.png": []}


@pytest.mark.parametrize("name", ["data.yaml", "labels/a.txt"])
def test_pointers_of_git_lfs_are_named(tmp_path, name):
    read(tmp_path, a="0 0.5 0.5 0.25 0.25")
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(UsageError, match=f"{name} is a Git LFS pointer"):
        read_upright("yolo", tmp_path, LabelSettings(tmp_path))


def test_labels_without_boxes_remain_classes(cli, workdir):
    read(workdir, "names: [dog, bird, cat]\n", a="")
    for folder in (".", "made"):
        words = ("import", folder, "--from", "yolo", "--images", ".", "-o", "truth.jsonl")
        assert cli(*words, "--overwrite")[0] == 0
        (row,) = read_rows("truth.jsonl")
        assert (row["prompt"], row["boxes"]) == ("detect dog ; bird ; cat", [])
        assert cli("export", "truth.jsonl", "--to", "yolo", "-o", "made", "--overwrite")[0] == 0


def test_import_export_import_is_equal(cli, workdir):
    names = "names: [dog, bird, cat]\n"
    polygons = (
        "0 0.1 0.1 0.87 0.3333 0.3 0.93\n2 0.05 0.2 0.9 0.21 0.5 0.31 0.5 0.3\n"
        "0 0.25 0 0.5 0.25 0.25 0.5 0 0.25\n2 0.1 0.1 0.9 0.1 0.9 0.2 0.1 0.2\n"
        "2 0.501 0.501 0.502 0.501 0.502 0.502 0.501 0.502"
    )
    read(workdir, names, a=polygons, b="2 0.123456 0.3 0.2 0.1", c="")
    Image.new("RGB", (4032, 3024)).save("images/a.png")
    assert cli("import", ".", "--from", "yolo", "-o", "truth.jsonl")[0] == 0
    for output in ("first", "second"):
        assert cli("export", "truth.jsonl", "--to", "yolo", "-o", output)[0] == 0
        words = ("--from", "yolo", "-o", "again.jsonl", "--images", ".", "--overwrite")
        assert cli("import", output, *words)[0] == 0
        code, out, _ = cli("diff", "truth.jsonl", "again.jsonl")
        assert code == 0, out
        Path("again.jsonl").rename("truth.jsonl")
