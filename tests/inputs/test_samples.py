"""Members of archives are grouped as WebDataset does it, and no image vanishes."""

import json
import tarfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from webdataset import tariterators

from pgcli.errors import ManifestError
from pgcli.inputs import Inventory, ReadOptions, tables, tar
from pgcli.inputs.options import InputFile, NameFilter
from pgcli.inputs.tar import TarTable
from tests.inputs.items import data_of, items
from tests.support.awkward import tar_of

KEYS = ("a", "b.c/a", "a.B", "v1")
ENDINGS = ("png", "PNG", "jpg", "txt", "json", "neg.txt", "seg.png", "0.png", "0.txt", "0.seg.png")
ENDINGS += ("1.png", "1.txt", "1.neg.txt", "1.json", "npy", "heic")
ARCHIVES = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(ENDINGS)), max_size=12)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 99\n"
COLUMNS = frozenset({"image", "txt", "neg.txt", "0.txt", "n", "1.json"})


def archive(*names: str, name: str = "x.tar", **contents: bytes) -> str:
    """An archive of members whose contents name themselves."""
    members = []
    for number, member in enumerate(names):
        data = f"{member} {number}".encode()
        if member.lower().endswith(".json"):
            data = json.dumps({"n": data.decode()}).encode()
        members.append((member, data))
    Path(name).write_bytes(tar_of(members, "gz" if name.endswith("gz") else ""))
    return name


def asked(*names: str, reading: ReadOptions | None = None) -> list[str]:
    """The images that are asked about; an error in place of those that are not."""
    found = items(archive(*names), reading=reading)
    return [item.fault.message if item.fault else item.id.removeprefix("x.tar/") for item in found]


def texts(*names: str, column: str = "txt") -> list[str | None]:
    """A column of all rows: the names of the members that it is from."""
    reading = ReadOptions(keep=(column,))
    kept = [item.kept[column] for item in items(archive(*names), reading=reading)]
    return [None if text is None else str(text).split()[0] for text in kept]


FRAMES = [f"frame.{n:04}.{ending}" for n in range(6) for ending in ("json", "png", "txt")]


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_images_that_share_a_key_are_rows_with_their_own_texts(ending):
    name = archive(*FRAMES, name=f"x.{ending}")
    found = items(name, reading=ReadOptions(keep=("txt", "n")))
    assert [item.id for item in found] == [f"{name}/{frame}" for frame in FRAMES[1::3]]
    assert [data_of(item).split()[0].decode() for item in found] == FRAMES[1::3]
    assert [item.kept["txt"].split()[0] for item in found] == FRAMES[2::3]
    assert [item.kept["n"].split()[0] for item in found] == FRAMES[::3]
    assert Inventory.scan([name]).notes == [("keyed", "1 archive by the last dot of names")]


@pytest.mark.parametrize(
    ("names", "images", "column", "expected"),
    [
        (["v1.0.png", "v1.0.txt", "v1.2.png", "v1.2.txt"], ["v1.0.png", "v1.2.png"], "txt", [1, 3]),
        # a folder with a dot, and endings in capitals
        (["d.e/f.0.PNG", "d.e/f.1.PNG", "d.e/f.1.TXT"], ["d.e/f.0.PNG", "d.e/f.1.PNG"], "txt",
         [None, 2]),
        (["v1.0.png", "v1.0.1.txt", "v1.0.1.png"], ["v1.0.png", "v1.0.1.png"], "txt", [None, 1]),
        # of one image, all members of the key are its own; a stem with dots is no part of a column
        (["a.b.png", "a.b.txt"], ["a.b.png"], "txt", [1]),
        (["a.b.png", "a.txt"], ["a.b.png"], "txt", [1]),
        (["a.2024.01.jpg", "a.2024.01.json", "b.jpg"], ["a.2024.01.jpg", "b.jpg"], "n", [1, None]),
        (["a.image.png", "a.caption.txt"], ["a.image.png"], "caption.txt", [1]),
        (["a.txt", "a.neg.txt", "a.png"], ["a.png"], "txt", [0]),
        (["a.txt", "a.neg.txt", "a.png"], ["a.png"], "neg.txt", [1]),
        (["a.meta.json", "a.png", "a.json"], ["a.png"], "n", [2]),
        (["a.png", "a.caption", "a.cls"], ["a.png"], "cls", [2]),
        (["a.jpg", "a.jpg.txt", "a.txt"], ["a.jpg"], "jpg.txt", [1]),
        # one key with several images decides for the whole archive
        (["x.seg.png", "x.png", "x.txt"], ["x.seg.png", "x.png"], "txt", [None, 2]),
        (["a.b.png", "a.b.txt", "f.0.png", "f.1.png"], ["a.b.png", "f.0.png", "f.1.png"], "txt",
         [1, None, None]),
        (["v1.1.png", "v1.2.png", "v1.png", "v1.txt"], ["v1.1.png", "v1.2.png", "v1.png"], "txt",
         [None, None, 3]),
        # hidden members and folders are between no members
        (["a.png", "._a.png", "PaxHeader/a.b", "a.txt"], ["a.png"], "txt", [None]),
        (["a.png", "._a.png", "a.txt"], ["a.png"], "txt", [2]),
    ],
)  # fmt: skip
def test_members_become_columns_of_the_image_asked_about(names, images, column, expected):
    assert asked(*names) == images
    if any(number is not None for number in expected):
        assert texts(*names, column=column) == [n if n is None else names[n] for n in expected]


@pytest.mark.parametrize(
    ("names", "column", "images"),
    [
        (["x.jpg", "x.seg.png", "y.SEG.png", "y.png"], "seg.png", ["x.seg.png", "y.SEG.png"]),
        (["x.jpg", "x.png"], "png", ["x.png"]),
        (["x.jpg", "x.seg.png"], ".seg.png", ["x.seg.png"]),  # as endings are often written
        (["x.jpg", "x.seg.png"], "jpg", ["x.jpg"]),
        (["f.0.png", "f.0.jpg", "f.1.jpg", "f.1.png"], "png", ["f.0.png", "f.1.png"]),
        (["f.0.png", "f.1.png"], "1.png", ["f.1.png"]),
        (["x.jpg", "x.seg.png", "y.jpg"], "seg.png",
         ["x.seg.png", "The sample has no member that ends in .seg.png."]),
    ],
)  # fmt: skip
def test_image_column_chooses_among_the_images_of_a_sample(names, column, images):
    for name in ("x.tar", "x.tar.gz"):
        found = items(archive(*names, name=name), reading=ReadOptions(image_column=column))
        shown = [i.fault.message if i.fault else i.image.removeprefix(f"{name}/") for i in found]
        assert shown == images
        assert [data_of(i).decode().split()[0] for i in found if not i.fault] == [
            image for image in images if image in names
        ]


@pytest.mark.parametrize(
    ("names", "messages"),
    [
        (["a.png", "a.txt", "a.png"], ["several images: a.png (member 1) and a.png (member 3)"]),
        (["a.png", "a.jpg", "b.png"], ["several images: a.png (member 1) and a.jpg", "b.png"]),
        (["a.png", "a.txt", "a.txt", "b.png"], ["a.txt (member 2) and a.txt (member 3)", "b.png"]),
        (["a.png", "a.PNG"], ["a.png (member 1) and a.PNG (member 2)"]),
        (["a.png", "a.json", "a.JSON"], ["a.json (member 2) and a.JSON (member 3)"]),
        (["a.png", "a.seg.png", "a.seg.png"],
         ["a.png", "a.seg.png (member 2) and a.seg.png (member 3)"]),
        (["f.0.png", "f.0.txt", "f.0.txt", "f.1.png"],
         ["f.0.txt (member 2) and f.0.txt (member 3)", "f.1.png"]),
    ],
)  # fmt: skip
def test_members_given_twice_in_a_sample_are_error_rows(names, messages):
    found = asked(*names)
    assert len(found) == len(messages)
    assert all(message in shown for message, shown in zip(messages, found, strict=True)), found


@pytest.mark.parametrize(
    ("names", "id_"),
    [
        (["a.png", "b.png", "a.png"], "x.tar/a.png"),
        (["d/a.png", "d/a.txt", "b.png", "d/a.txt", "d/a.png"], "x.tar/d/a.png"),
        (["f.0.png", "f.1.png", "b.png", "f.1.png"], "x.tar/f.1.png"),
    ],
)
def test_image_that_is_stored_twice_in_an_archive_is_named(names, id_):
    name = archive(*names)
    with pytest.raises(ManifestError, match=f"the id '{id_}' occurs twice: x.tar, sample "):
        Inventory.scan([name])
    images = [member for member in names if member.endswith("png")]
    assert len(items(name, reading=ReadOptions(repeats_ids=True))) == len(images)
    assert len(items(name, reading=ReadOptions(names=NameFilter(include=("*b.png",))))) == 1


@given(ARCHIVES)
@settings(max_examples=300, suppress_health_check=list(HealthCheck))
def test_samples_with_one_image_equal_webdatasets(members):
    name = archive(*(f"{key}.{ending}" for key, ending in members))
    try:
        with open(name, "rb") as file:
            files = tariterators.tar_file_expander([{"url": name, "stream": file}])
            expected = list(tariterators.group_by_keys(files))
    except ValueError:  # a member is given twice
        return
    images = [[key for key in sample if key.endswith(("png", "jpg"))] for sample in expected]
    assume(all(len(keys) <= 1 and not "".join(keys).count(".") for keys in images))
    rows = [row.values for _, row in TarTable(InputFile(name, name)).read(COLUMNS)]
    pairs = ((s, keys[0]) for s, keys in zip(expected, images, strict=True) if keys)
    for (sample, ending), row in zip(pairs, rows, strict=True):
        path = row["image"]["path"].removeprefix("x.tar/")
        assert path.lower() == f"{sample['__key__']}.{ending}".lower()
        texts = COLUMNS & sample.keys() - {"1.json"}
        given = {name: sample[name].decode() for name in texts}
        given |= json.loads(sample["json"]) if "json" in sample else {}
        assert {name: row[name] for name in given} == given


@given(ARCHIVES)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_image_is_a_row_and_items_are_the_same_from_any_row(members):
    names = [f"{key}.{ending}" for key, ending in members]
    images = sum(name.lower().endswith(("png", "jpg")) for name in names)
    reading = ReadOptions(keep=("*",), repeats_ids=True)
    assume(images)
    found = items(archive(*names), reading=reading)
    assert images == len(found) or any(item.fault for item in found)
    for number in range(len(found)):
        assert list(Inventory.scan(["x.tar"], reading).items(number)) == found[number:]
    packed = items(archive(*names, name="x.tar.gz"), reading=reading)
    assert [item.image.partition("/")[2] for item in packed] == [
        item.image.partition("/")[2] for item in found
    ]
    assert [data_of(item) for item in packed] == [data_of(item) for item in found]


def test_sample_of_too_many_members_is_an_error_row(monkeypatch):
    monkeypatch.setattr(tar, "MAX_MEMBERS", 7)
    names = ["a.png", *(f"a.{n}.txt" for n in range(9)), "b.png"]
    assert asked(*names)[0].startswith("The sample has more than")
    assert asked(*names)[1:] == ["b.png"]


@pytest.mark.parametrize(
    ("names", "skipped"),
    [
        (
            ["a.png", "b.heic", "c.jp2", "c.txt"],
            {".heic": 1, ".jp2": 1, ".txt without an image": 1},
        ),
        (["a.png", "b.png", "a.txt", "b.txt"], {".txt without an image": 2}),
        (["README", "notes.md", "a.png", "a.npy", "._a.png"], {"(none)": 1, ".md": 1, ".npy": 1}),
        (["f.0.png", "f.1.png", "f.json"], {".json without an image": 1}),
    ],
)
def test_skipped_members_are_counted_by_ending(names, skipped):
    inventory = Inventory.scan([archive(*names)])
    assert inventory.ignored == skipped
    Path("set").mkdir()
    Path("x.tar").rename("set/x.tar")
    Path("set/README.md").write_text("")
    known = Inventory.scan(["set"])
    again = Inventory.scan(["set"], known=known)  # which does not read the archive again
    assert known.ignored == again.ignored == Counter(skipped) + Counter({".md": 1})


@pytest.mark.parametrize("ending", ["txt", "json", "neg.txt", "caption", "cls"])
def test_byte_order_mark_and_pointers_are_no_part_of_texts(ending):
    column = "n" if ending == "json" else ending
    text = '{"n": "gr\u00fcn"}' if ending == "json" else "gr\u00fcn"
    contents = [text.encode("utf-8-sig"), POINTER, text.encode("utf-16")]
    members = [(f"{n}.{e}", data) for n, data in enumerate(contents) for e in ("png", ending)]
    Path("x.tar").write_bytes(tar_of(members))
    marked, pointer, utf16 = items("x.tar", reading=ReadOptions(keep=(column,)))
    assert (marked.kept, marked.fault) == ({column: "gr\u00fcn"}, None)
    assert (
        pointer.fault.message
        == f"The sample's .{ending} is a Git LFS pointer, not the file itself."
    )
    assert utf16.fault.message == f"The sample's .{ending} is not UTF-8."


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_marks_are_exact_behind_headers_of_long_names(format, monkeypatch):
    monkeypatch.setattr(tables, "EVERY", 3)
    long = "d/" * 60 + "\u00fc" * 60
    names = [f"{long}.{n}.{ending}" for n in range(7) for ending in ("png", "txt")]
    with tarfile.open("x.tar", "w", format=format) as archive:
        for name in [*names, "a.png", f"{long}.9.png", "b.0.png", "b.0.txt", "b.1.png"]:
            header = tarfile.TarInfo(name)
            header.size = len(name.encode())
            archive.addfile(header, BytesIO(name.encode()))
    inventory = Inventory.scan(["x.tar"], ReadOptions(keep=("txt",)))
    found = list(inventory)
    assert [item.fault for item in found] == [None] * 11
    assert [item.kept["txt"] for item in found[:7]] == names[1::2]
    for start in range(len(found)):
        fresh = Inventory.scan(["x.tar"], ReadOptions(keep=("txt",)))
        assert list(fresh.items(start)) == found[start:]
