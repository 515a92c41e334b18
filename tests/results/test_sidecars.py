"""Tests texts beside images, and the hooks that a run has."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from pgcli.errors import OutputFailed, UsageError
from pgcli.records import Item
from pgcli.results.hooks import Drawings, Sidecars, check_hooks, make_hooks
from pgcli.tasks import caption, detect, embed
from tests.support.exporting import answer, refused


def images(folder: Path, *names: str) -> list[Item]:
    """Items of these images."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [Item(n, name, name, path=f"{folder}/{name}") for n, name in enumerate(names)]


def written(
    items: list[Item], text: str = "one", *words: str, bad: str = "", **options: bool
) -> str:
    """The fact of a run that answers all items with this text, or refuses the `bad` one."""
    hook = Sidecars(".txt", *words, **options)
    for item in items:
        row = refused(item.index) if item.id == bad else answer(item.index, answer=text)
        hook.on_row(row, item, is_saved=False)
    ((name, fact),) = hook.finish(complete=True)
    assert name == "sidecars"
    return fact


def texts(folder: Path) -> dict[str, str]:
    return {str(one.relative_to(folder)): one.read_text() for one in folder.rglob("*.txt")}


def test_each_image_has_a_text_and_errors_have_none(tmp_path):
    names = ("a.jpg", "a.png", "b.PNG", "bad.png", "sub/a.png", "c.tar.png")
    fact = written(images(tmp_path, *names), "one", "sks, ", "!", bad="bad.png")
    assert texts(tmp_path).keys() == {"a.txt", "a.png.txt", "b.txt", "sub/a.txt", "c.tar.txt"}
    assert set(texts(tmp_path).values()) == {"sks, one!\n"}
    assert fact == "5 files ending in .txt; 1 file named as a.png.txt: the name is taken"
    assert not list(tmp_path.rglob(".pgcli*"))


def test_an_answer_of_several_lines_is_one_line(tmp_path):
    text = "A cat.\n\nIt sleeps:\r\n - on a mat \u2028 - at noon\n"
    written(images(tmp_path, "a.png"), text, "sks, ")
    assert texts(tmp_path) == {"a.txt": "sks, A cat. It sleeps: - on a mat - at noon\n"}


def test_existing_texts_are_kept_unless_they_are_overwritten(tmp_path):
    items = images(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / "a.txt").write_text("mine")
    (tmp_path / "elsewhere").write_text("one\n")
    (tmp_path / "c.txt").symlink_to(tmp_path / "elsewhere")
    assert written(items) == "1 file ending in .txt; 2 files kept unchanged"
    assert texts(tmp_path) == {"a.txt": "mine", "b.txt": "one\n", "c.txt": "one\n"}
    assert written(items, "two", overwrite=True) == "3 files ending in .txt"
    assert set(texts(tmp_path).values()) == {"two\n"}
    assert (tmp_path / "elsewhere").read_text() == "one\n"


@pytest.mark.parametrize("data", [b"a", b"", b" \n"])
def test_texts_are_kept_whatever_they_contain(tmp_path, data):
    (item,) = images(tmp_path, "a.png")
    (tmp_path / "a.txt").write_bytes(data)
    assert Sidecars(".txt", is_only_output=True).skips(item)
    assert written([item]) == "0 files ending in .txt; 1 file kept unchanged"
    assert (tmp_path / "a.txt").read_bytes() == data


def test_text_that_appears_meanwhile_is_kept(tmp_path, monkeypatch):
    (item,) = images(tmp_path, "a.png")
    hook = Sidecars(".txt")
    (tmp_path / "a.txt").write_text("mine")
    monkeypatch.setattr(hook, "_is_kept", lambda name: False)  # as if it did not exist a moment ago
    hook.on_row(answer(), item, is_saved=False)
    assert (texts(tmp_path), hook.counts["kept"]) == ({"a.txt": "mine"}, 1)


def test_images_without_a_file_get_no_text(tmp_path):
    items = [
        Item(0, "0", "0", data=b"bytes"),
        Item(1, "x/a.png", "s3://x/a.png", path="s3://x/a.png"),
        Item(2, "a.png", "shard.tar/a.png", path=f"{tmp_path}/shard.tar", span=(512, 10)),
        Item(3, "a.png", "shard.tar.gz/a.png", path=f"{tmp_path}/shard.tar.gz", data=b"bytes"),
        *(Item(4, path, path, path=path) for path in (".", "/")),
    ]
    assert written(items) == "0 files ending in .txt"
    assert not any(Sidecars(".txt", is_only_output=True).skips(item) for item in items)
    assert list(tmp_path.iterdir()) == []


def test_names_are_claimed_in_the_order_of_the_input(tmp_path):
    """A failed image keeps its name."""
    items = images(tmp_path, "a.png", "a.jpg")
    written(items, bad="a.png")
    assert texts(tmp_path).keys() == {"a.jpg.txt"}
    written(items)
    assert texts(tmp_path).keys() == {"a.txt", "a.jpg.txt"}


@pytest.mark.parametrize("twins", ["caf\u00e9 cafe\u0301", "Case case"])
def test_names_equal_on_some_file_systems_have_two_texts(tmp_path, twins):
    first, second = sorted(twins.split())
    written(images(tmp_path, f"{first}.png", f"{second}.png"))
    assert texts(tmp_path).keys() == {f"{first}.txt", f"{second}.png.txt"}


def test_image_with_too_long_a_name_has_no_text(tmp_path):
    hook = Sidecars(".caption")
    for item in images(tmp_path, "n" * 251 + ".png", "o" * 247 + ".png"):
        hook.on_row(answer(item.index), item, is_saved=False)
    ((_, fact),) = hook.finish(complete=True)
    assert fact == "1 file ending in .caption; 1 file not written: the name is too long or taken"
    assert (tmp_path / ("o" * 247 + ".caption")).exists()


def test_name_that_is_not_utf8_has_a_text(tmp_path):
    name = os.fsdecode(b"c\xff\n.png")
    assert written(images(tmp_path, name), "half \ud800") == "1 file ending in .txt"
    assert (tmp_path / name.replace(".png", ".txt")).read_text() == "half \ufffd\n"


def test_text_of_a_relative_image_is_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written([Item(0, "a.png", "a.png", path="a.png"), Item(1, "b.png", "b.png", path="./b.png")])
    assert texts(tmp_path).keys() == {"a.txt", "b.txt"}


def test_folder_in_place_of_a_text_ends_the_run(tmp_path):
    items = images(tmp_path, "a.png")
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(OutputFailed, match=r"cannot write .*a\.txt"):
        written(items, overwrite=True)


def test_text_below_a_folder_creates_its_folders(tmp_path):
    """As exports write them."""
    hook, target = Sidecars(".txt"), str(tmp_path)
    name = hook.claim(f"{target}/sub/a.png")
    assert name == f"{target}/sub/a.txt"
    hook.write(name, "one", below=target)
    (tmp_path / "link").symlink_to(tmp_path / "sub")
    with pytest.raises(OutputFailed, match="link is a link, not a folder"):
        hook.write(f"{target}/link/b.txt", "one", below=target)
    assert (texts(tmp_path), hook.counts["written"]) == ({"sub/a.txt": "one\n"}, 1)


ITEM = Item(0, "a.png", "a.png", path="a.png")


@dataclass(frozen=True)
class Options:
    output: str = "-"
    format: str = "auto"
    overwrite: bool = False
    draw: str | None = None
    sidecar: str | None = None


def test_hooks_follow_from_the_options(tmp_path):
    assert make_hooks(Options(), caption()) == []
    assert make_hooks(Options(), embed()) == []
    options = Options(draw=str(tmp_path / "drawn"), sidecar=".txt")
    hooks = make_hooks(options, detect(["star"]))
    assert [type(hook) for hook in hooks] == [Sidecars, Drawings]
    for hook in hooks:
        hook.finish(complete=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "is_skipped"),
    [
        (Options(), True),
        (Options(format="text"), True),
        (Options(format="jsonl"), False),
        (Options(output="rows.jsonl"), False),
        (Options(draw="drawn"), False),
    ],
)
def test_kept_texts_are_skipped_where_they_are_the_only_output(tmp_path, options, is_skipped):
    (tmp_path / "a.txt").write_text("kept")
    values = vars(options) | {"sidecar": ".txt"}
    hook, *_ = make_hooks(Options(**values), caption())
    assert hook.skips(Item(0, "a", "a", path=str(tmp_path / "a.png"))) == is_skipped


@pytest.mark.parametrize("ending", ["txt", ".png", ".JPG", ".jsonl", ".tar", "/x.txt", ".", ""])
def test_invalid_sidecar_ending_is_an_error(ending):
    with pytest.raises(UsageError, match="must be the extension of a text file"):
        check_hooks(Options(sidecar=ending))
    check_hooks(Options(sidecar=".caption"))
