"""Tests `pgcli export`: each format, read back with the library that reads it; rotated images."""

import csv
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy
import pandas
import pytest
import yaml
from PIL import Image, ImageOps
from pyarrow import parquet
from pycocotools.coco import COCO

from pgcli.registry import BUILT_IN
from pgcli.results.exports.files import upright_file
from tests.support.exporting import SIZES, box, captioned, exported, of, plain, row, saved

# COCO


def test_pycocotools_reads_boxes_masks_scores_and_labels(cli, boxes, folder, tmp_path):
    output = tmp_path / "coco.json"
    assert exported(cli, boxes, "coco", output)[0] == 0
    coco = COCO(output)
    assert {one["id"]: one["name"] for one in coco.loadCats(coco.getCatIds())} == {
        1: "cat",
        2: "dog",
    }
    images = {one["id"]: one for one in coco.loadImgs(coco.getImgIds())}
    assert [one["file_name"] for one in images.values()] == [str(folder / name) for name in SIZES]
    assert [(one["width"], one["height"]) for one in images.values()] == list(SIZES.values())
    first, second, third = coco.loadAnns(coco.getAnnIds())
    assert (first["bbox"], first["category_id"], first["score"]) == ([8, 4, 20, 10], 2, 0.25)
    assert (second["bbox"], second["area"]) == ([0, 0, 64, 48], 64 * 48)
    assert (third["image_id"], third["bbox"]) == (3, [3, 6, 12, 30])
    mask = coco.annToMask(first)
    assert mask.shape == (48, 64)
    assert mask[4:14, 8:28].sum() == mask.sum() == first["area"] == 199
    assert mask[4, 8] == 0
    assert coco.getAnnIds(imgIds=[2]) == []


def test_coco_prefers_boxes_to_captions(cli, folder, tmp_path):
    rows = [plain(folder)[0], of(0, folder, prompt="what?"), of(1, folder, prompt="what?")]
    file = saved(tmp_path / "r.jsonl", rows)
    for options, count, has in (((), 2, "bbox"), (("--only-prompt", "what?"), 2, "caption")):
        exported(cli, file, "coco", tmp_path / "o.json", "--overwrite", *options)
        made = json.loads((tmp_path / "o.json").read_text())["annotations"]
        assert len(made) == count
        assert all(has in one for one in made)


# YOLO


def test_any_yolo_label_is_valid_yaml(cli, folder, tmp_path):
    labels = ["yes", "- a: #b", 'q"\\', "l\u2028s\x85\x7f", "\U0001f600", "", "1", "a\nb"]
    rows = [
        of(0, folder, task="detect", boxes=tuple(box(one, 0.0, 0.0, 9.0, 9.0) for one in labels))
    ]
    exported(cli, saved(tmp_path / "r.jsonl", rows), "yolo", tmp_path / "yolo")
    names = yaml.safe_load((tmp_path / "yolo" / "data.yaml").read_text(encoding="utf-8"))["names"]
    assert names == dict(enumerate(sorted(labels)))


def test_images_with_the_same_stem_are_renamed_and_reported(cli, folder, tmp_path):
    Image.new("RGB", (40, 40), (1, 2, 3)).save(folder / "a.jpg")
    twin = of(1, folder, id="a.jpg", image=str(folder / "a.jpg"), task="detect")
    rows = saved(tmp_path / "rows.jsonl", [plain(folder)[0], twin])
    code, err = exported(cli, rows, "yolo", tmp_path / "yolo")
    assert code == 0
    assert "a.jpg is a-2.jpg" in err
    labels = tmp_path / "yolo" / "labels"
    lines = [(labels / f"{name}.txt").read_text().count("\n") for name in ("a", "a-2")]
    assert lines == [2, 0]


@pytest.mark.parametrize("where", [None, "out"])
@pytest.mark.parametrize("to", ["txt", "caption"])
def test_texts_of_images_with_one_stem_are_named_after_the_image(cli, workdir, to, where):
    ids = ["a.jpg", "a.png", "sub/b.webp", "sub/b.gif", "v1.2.png", "A.bmp"]
    for id_ in ids:
        Path("k", id_).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(Path("k", id_))
    rows = [row(n, id=id_, image=f"k/{id_}", answer=id_) for n, id_ in enumerate(ids)]
    words = () if where is None else ("-o", where)
    code, _, err = cli("export", saved(Path("r.jsonl"), rows), "--to", to, *words)
    assert code == 0
    assert f"the text of a.png is a.png.{to}, the text of sub/b.gif is b.gif.{to}" in err
    names = ["a", "a.png", "sub/b", "sub/b.gif", "v1.2", "A.bmp"]
    found = {name: Path(where or "k", f"{name}.{to}").read_text() for name in names}
    assert found == {name: f"{id_}\n" for name, id_ in zip(names, ids, strict=True)}


# Label Studio


def test_paths_but_not_urls_are_quoted_after_a_prefix(cli, tmp_path):
    urls = ["https://host/a b.png?x=1&y=%20", "s3://bucket/a.png", "data:image/png;base64,AA=="]
    path, prefix = "a b/c#1?&.png", "/data/?d="
    rows = [row(index, image=image) for index, image in enumerate([*urls, path])]
    file = saved(tmp_path / "r.jsonl", rows)
    for options, address in (
        ((), path),
        (("--image-prefix", prefix), f"{prefix}a%20b/c%231%3F%26.png"),
    ):
        exported(cli, file, "labelstudio", tmp_path / "t.json", "--overwrite", *options)
        tasks = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
        assert [task["data"]["image"] for task in tasks] == [*urls, address]


# datasets


# WebDataset


def test_label_studio_gets_texts_of_several_prompts(cli, folder, tmp_path):
    rows = [of(0, folder, prompt=prompt, answer=prompt.upper()) for prompt in ("one?", "two?")]
    exported(cli, saved(tmp_path / "r.jsonl", rows), "labelstudio", tmp_path / "t.json")
    (task,) = json.loads((tmp_path / "t.json").read_text())
    reported = [one["value"]["text"] for one in task["predictions"][0]["result"]]
    assert reported == [["ONE?"], ["TWO?"]]


def test_webdataset_reads_images_texts_and_rows(cli, folder, tmp_path):
    webdataset = pytest.importorskip("webdataset", reason="a development dependency")
    rows = captioned(folder, "first", "second", "dritte \U0001f600")
    output = tmp_path / "shard.tar"
    assert exported(cli, saved(tmp_path / "r.jsonl", rows), "webdataset", output)[0] == 0
    samples = list(webdataset.WebDataset(str(output), shardshuffle=False).decode("pil"))
    assert [sample["txt"] for sample in samples] == ["first", "second", "dritte \U0001f600"]
    assert [sample["json"] for sample in samples] == rows
    sizes = [next(sample[k] for k in ("png", "jpg") if k in sample).size for sample in samples]
    assert sizes == list(SIZES.values())
    with tarfile.open(output) as tar:
        assert tar.pax_headers == {}
        names = tar.getnames()
    assert names[:3] == ["000000001.png", "000000001.txt", "000000001.json"]


# CSV


FORMULAS = ["=cmd|'/c calc'!A1", "+1", "-1", "@x", "\t=1", "\r=1", " =1", "\u00a0\n+1", "\ufeff=1"]
FORMULAS += ["\u200b-1", "\uff1d1", "\uff0b1", "\uff0d1", "\uff20x", " \u3000\uff1d1", "\x0b@x"]
HOSTILE = [*FORMULAS, 'a,"b"\nc', "'quoted", "fine", " fine = 1", "a-b", "\u00e9=1"]


def test_csv_escapes_formulas(cli, tmp_path):
    rows = [row(index, answer=text, kept={"=k": text}) for index, text in enumerate(HOSTILE)]
    file, output = saved(tmp_path / "r.jsonl", rows), tmp_path / "o.csv"
    exported(cli, file, "csv", output)
    with open(output, encoding="utf-8", newline="") as opened:
        header, *lines = csv.reader(opened)
    column = header.index("answer")
    reported = [line[column] for line in lines]
    assert [line[-1] for line in lines] == reported
    count = len(FORMULAS)
    assert reported == [f"'{text}" for text in FORMULAS] + HOSTILE[count:]
    assert header[-1] == "'=k"


def test_csv_begins_with_the_mark_by_which_excel_knows_utf8(cli, tmp_path):
    file = saved(tmp_path / "r.jsonl", [row(0, answer="\u732b"), row(1, answer="00123\r\n")])
    exported(cli, file, "csv", tmp_path / "o.csv")
    data = (tmp_path / "o.csv").read_bytes()
    assert data.startswith("\ufeffindex,id,".encode())
    frame = pandas.read_csv(tmp_path / "o.csv", dtype=str)
    assert (frame.columns[0], frame["answer"].tolist()) == ("index", ["\u732b", "00123\r\n"])
    code, _, err = cli("ask", tmp_path / "o.csv", "--dry-run", "--model", "demo", "--keep", "index")
    assert code == 0, err


# All formats


@pytest.mark.parametrize("to", sorted(BUILT_IN["exports"].keys() - {"txt", "caption"}))
def test_equal_rows_give_equal_exports(cli, boxes, tmp_path, to):
    for name in ("one", "two"):
        assert exported(cli, boxes, to, tmp_path / name)[0] == 0

    def content(output: Path) -> dict[str, bytes]:
        files = [output] if output.is_file() else [f for f in output.rglob("*") if f.is_file()]
        return {str(file.relative_to(output)): file.read_bytes() for file in files}

    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert not [file for file in tmp_path.iterdir() if file.name.endswith((".part", ".old"))]


#: Boxes from another tool, and their part within an image of 40 by 40, if any.
STRANGE = [
    ((-5.0, -5.0, 10.0, 20.5), (0, 0, 10, 20.5)),
    ((30, 8, 50, 60), (30, 8, 10, 32)),
    ((-1e9, -1e9, 1e9, 1e9), (0, 0, 40, 40)),
    ((1.25, 2.5, 39.75, 40.0), (1.25, 2.5, 38.5, 37.5)),  # inside the image
    ((20, 5, 10, 15), None),
    ((5, 15, 10, 5), None),
    ((5, 5, 5, 9), None),
    ((50, 5, 60, 9), None),
    ((-9, -9, -1, 50), None),
]


def corners(output: Path, to: str) -> list[tuple[float, ...]]:
    """The boxes of an export of an image of 40 by 40: left, top, width, height in pixels."""
    if to in ("coco", "fiftyone"):
        file = output if to == "coco" else output / "labels.json"
        return [tuple(one["bbox"]) for one in json.loads(file.read_text())["annotations"]]
    if to == "imagefolder":
        line = json.loads((output / "metadata.jsonl").read_text())
        return [tuple(one) for one in line["objects"]["bbox"]]
    if to == "labelstudio":
        (task,) = json.loads(output.read_text())
        values = [one["value"] for one in task["predictions"][0]["result"]]
        sides = ("x", "y", "width", "height")
        return [tuple(value[side] * 0.4 for side in sides) for value in values]
    lines = (output / "labels" / "b.txt").read_text().splitlines()
    found = [[float(share) * 40 for share in line.split()[1:]] for line in lines]
    return [(x - w / 2, y - h / 2, w, h) for x, y, w, h in found]


def test_fiftyone_has_the_confidence_alone_as_its_score(cli, folder, tmp_path):
    boxes = (replace(box("cat", 8.0, 4.0, 28.0, 14.0, score=0.1), confidence=0.9),)
    rows = saved(tmp_path / "r.jsonl", [of(1, folder, task="detect", boxes=boxes)])
    exported(cli, rows, "fiftyone", tmp_path / "out", "--store-images", "copy")
    labels, imported = tmp_path / "out" / "labels.json", tmp_path / "imported.jsonl"
    data = tmp_path / "out" / "data"
    (annotation,) = json.loads(labels.read_text())["annotations"]
    assert annotation["score"] == 0.9
    assert "confidence" not in annotation  # FiftyOne's importer would get it twice, and raise
    assert cli("import", labels, "--from", "coco", "--images", data, "-o", imported)[0] == 0
    ((again,),) = [line["boxes"] for line in map(json.loads, imported.open())]
    assert (again["score"], again["confidence"]) == (0.9, 0.9)


def scores_of(output: Path, to: str) -> list[float]:
    """Every score in an export."""
    if to == "parquet":
        found = parquet.read_table(output)["boxes"].to_pylist()[0]
    elif to == "csv":
        found = json.loads(next(csv.DictReader(output.open(encoding="utf-8-sig")))["boxes"])
    elif to == "webdataset":
        with tarfile.open(output) as tar:
            found = json.load(tar.extractfile("000000001.json"))["boxes"]
    elif to == "imagefolder":
        return json.loads((output / "metadata.jsonl").read_text())["objects"]["scores"]
    elif to == "labelstudio":
        found = json.loads(output.read_text())[0]["predictions"][0]["result"]
    else:
        file = output / "labels.json" if to == "fiftyone" else output
        found = json.loads(file.read_text())["annotations"]
    return [one["score"] for one in found]


@pytest.mark.parametrize(
    "to", ["coco", "labelstudio", "imagefolder", "fiftyone", "csv", "parquet", "webdataset"]
)
def test_score_is_the_confidence_in_every_export(cli, folder, tmp_path, to):
    sure = replace(box("cat", 8.0, 4.0, 28.0, 14.0, score=0.1), confidence=0.9)
    older = replace(box("cat", 2.0, 4.0, 28.0, 14.0, score=0.3), confidence=None)
    rows = saved(tmp_path / "r.jsonl", [of(1, folder, task="detect", boxes=(sure, older))])
    assert exported(cli, rows, to, tmp_path / "out")[0] == 0
    assert scores_of(tmp_path / "out", to) == [0.9, 0.3]
    assert json.loads(rows.read_text())["boxes"][0]["score"] == 0.1


@pytest.mark.parametrize("to", ["coco", "yolo", "labelstudio", "imagefolder", "fiftyone"])
def test_boxes_are_clipped_and_boxes_outside_the_image_are_reported(cli, folder, tmp_path, to):
    boxes = tuple(box("cat", *given) for given, _ in STRANGE)
    rows = saved(tmp_path / "r.jsonl", [of(1, folder, task="detect", boxes=boxes)])
    code, err = exported(cli, rows, to, tmp_path / "out")
    assert code == 0
    assert "exported 1 image with 4 boxes" in err
    assert "; 5 boxes with no area in the image skipped" in err
    wanted = [inside for _, inside in STRANGE if inside is not None]
    found = corners(tmp_path / "out", to)
    assert numpy.array(found) == pytest.approx(numpy.array(wanted), abs=1e-4)


SIZE = (48, 32)


def photograph(format_: str, orientation: int = 1, mode: str = "RGB", **options: object) -> bytes:
    """An image with a bright left third and a grey lowest quarter, with an EXIF orientation."""
    pixels = numpy.zeros(SIZE[::-1], numpy.uint8)
    pixels[24:] = 128
    pixels[:, :16] = 255
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "a maker"
    Image.fromarray(pixels).convert(mode).save(file, format_, exif=exif, **options)
    return file.getvalue()


def seen(data: bytes) -> numpy.ndarray:
    """The pixels with the EXIF orientation applied."""
    with Image.open(io.BytesIO(data)) as image:
        return numpy.asarray(ImageOps.exif_transpose(image).convert("L")).astype(int)


def stored(data: bytes) -> numpy.ndarray:
    """The pixels without the EXIF orientation, which Pillow always applies to TIFF."""
    with Image.open(io.BytesIO(data)) as image:
        assert image.getexif().get(0x0112, 1) == 1
        return numpy.asarray(image.convert("L")).astype(int)


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_rotated_image_is_stored_upright(format_, orientation):
    data = photograph(format_, orientation)
    upright = upright_file(data)
    off = numpy.abs(stored(upright) - seen(data)).max()
    assert off <= {"JPEG": 12, "AVIF": 12}.get(format_, 0)
    with Image.open(io.BytesIO(upright)) as image:
        assert image.format == format_
        if format_ in ("JPEG", "PNG", "WEBP"):
            assert image.getexif()[0x010F] == "a maker"
    assert upright_file(upright) is None


@pytest.mark.parametrize("orientation", [0, 1, 9])
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_upright_image_is_not_changed(format_, orientation):
    assert upright_file(photograph(format_, orientation)) is None


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "I;16", "1", "P"])
def test_rotated_png_keeps_its_mode(mode):
    upright = upright_file(photograph("PNG", 6, mode))
    with Image.open(io.BytesIO(upright)) as image:
        assert (image.mode, image.size) == (mode, SIZE[::-1])


def test_damaged_rotated_image_is_skipped_and_reported(cli, tmp_path):
    data = photograph("JPEG", 6)
    (tmp_path / "a.jpg").write_bytes(data[: len(data) - 100])
    known = {"id": "a.jpg", "image": str(tmp_path / "a.jpg"), "width": 32, "height": 48}
    file = saved(tmp_path / "r.jsonl", [row(0, task="detect", **known)])
    code, err = exported(cli, file, "yolo", tmp_path / "out", "--store-images", "copy")
    assert code == 3
    assert "1 image that cannot be read skipped" in err
