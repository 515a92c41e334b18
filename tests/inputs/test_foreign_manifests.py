"""Files of other forms in place of manifests are refused with their form and a conversion."""

import bz2
import gzip
import json
import lzma
import shutil
import subprocess
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from pgcli.errors import ManifestError, UsageError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.foreign_manifests import foreign_manifest
from pgcli.stores.files import read_text
from tests.inputs.items import items
from tests.support.awkward import tar_of

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
ROWS = [{"image": "a.png"}, {"image": "b.png"}]
LLAVA = [
    {
        "id": "x1",
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": '<image>\nWhat is "it"?'},
            {"from": "gpt", "value": "a star"},
            {"from": "human", "value": "Sure?"},
            {"from": "gpt", "value": "yes"},
        ],
    },
    {"id": "x2", "conversations": [{"from": "human", "value": "Hi"}]},
]
COCO = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [], "categories": []}


def refusal(name: str, text: bytes | str, reading: ReadOptions | None = None) -> UsageError:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as refused:
        Inventory.scan([name], reading or ReadOptions())
    return refused.value


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "json", "csv", "tsv", "parquet", "tar"])
def test_pointer_of_git_lfs_is_named(ending):
    refused = refusal(f"m.{ending}", POINTER)
    assert str(refused) == f"m.{ending} is a Git LFS pointer, not the file itself"
    assert "git lfs pull" in refused.hint


def test_pointer_in_place_of_a_list_of_texts_is_not_read():
    Path("prompts.txt").write_bytes(POINTER)
    with pytest.raises(UsageError, match=r"^prompts.txt is a Git LFS pointer"):
        read_text("prompts.txt")


@pytest.mark.parametrize("text", [json.dumps(ROWS), json.dumps(ROWS, indent=1), "\ufeff[\n\n{"])
@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_array_of_json_is_named(ending, text):
    refused = refusal(f"m.{ending}", text)
    assert str(refused) == f"m.{ending} is one JSON array, not a JSON object on each line"
    assert refused.hint == f"convert it: jq -c '.[]' m.{ending} > rows.jsonl"


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("text", [json.dumps(ROWS), '{"image": "a.png"},\n{"image": "b.png"},\n'])
def test_conversion_does_not_write_to_its_own_file(text):
    command = refusal("rows.jsonl", text).hint.partition(": ")[2]
    assert command.endswith(" rows.jsonl > new.jsonl")
    subprocess.run(command, shell=True, check=True, timeout=60)
    assert Path("rows.jsonl").read_text() == text
    assert [item.id for item in items("new.jsonl")] == ["a.png", "b.png"]


def test_objects_over_several_lines_are_named():
    refused = refusal("m.jsonl", "".join(json.dumps(row, indent=1) + "\n" for row in ROWS))
    assert str(refused) == "m.jsonl has JSON over several lines, not a JSON object on each line"


def test_annotations_and_lines_in_json_files_are_named():
    refused = refusal("m.json", json.dumps(COCO))
    assert "has COCO annotations" in str(refused)
    assert "pgcli import m.json --from coco" in refused.hint
    assert refusal("m.jsonl", json.dumps(COCO, indent=1)).args == (
        "m.jsonl has COCO annotations and is not a manifest",
    )
    refused = refusal("m.json", "".join(json.dumps(row) + "\n" for row in ROWS))
    assert "rename it to .jsonl" in refused.hint


def converted(hint: str) -> list[dict[str, Any]]:
    """The rows that the command of a hint makes."""
    subprocess.run(["sh", "-c", hint.partition("convert it: ")[2]], check=True, timeout=60)
    return [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_conversions_make_manifests():
    assert converted(refusal("m.jsonl", json.dumps(ROWS, indent=1)).hint) == ROWS
    indented = "\n".join(json.dumps(row, indent=1) for row in ROWS)
    assert converted(refusal("it's.jsonl", indented).hint) == ROWS
    row = {"image": "a.png", "prefix": 'What is "it"?', "suffix": "a star"}
    expected = [row, {"image": "a.png", "prefix": "Sure?", "suffix": "yes"}]
    assert converted(refusal("llava.json", json.dumps(LLAVA)).hint) == expected
    assert [item.id for item in items("rows.jsonl")] == ["a.png", "a.png"]


def test_conversations_of_llava_are_named():
    message = "has LLaVA conversations, which pgcli does not read"
    assert str(refusal("m.json", json.dumps(LLAVA, indent=2))) == f"m.json {message}"
    assert str(refusal("m.jsonl", json.dumps(LLAVA))) == f"m.jsonl {message}"
    asking = ReadOptions(requires_prompts=True)
    refused = refusal("m.jsonl", json.dumps(LLAVA[0]) + "\n", asking)
    assert str(refused) == "m.jsonl has no column 'prompt'"
    assert "jq -c 'select(.image)" in refused.hint
    at_address = foreign_manifest("s3://b/it.json", b'[{"conversations": []}]')
    assert at_address is not None
    assert at_address.hint.endswith("' FILE > rows.jsonl")


HEADER = "standard input, line 1: this is the header of a table, not a path"
ARRAY = "standard input is one JSON array, not a JSON object on each line"


ZIPPED = BytesIO()
with zipfile.ZipFile(ZIPPED, "w") as workbook:
    workbook.writestr("xl/workbook.xml", "x")


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (tar_of([("a.png", b"\r\n")]), "tar"),
        (tar_of([("a.png", b"x")], "gz"), "gzip"),
        (gzip.compress(b'{"image": "a.png"}\n'), "gzip"),
        (b"PAR1\x15\x04\nPAR1", "Parquet"),
        (ZIPPED.getvalue(), "ZIP"),
        (bz2.compress(b"a"), "bzip2"),
        (lzma.compress(b"a"), "xz"),
        (b"\x28\xb5\x2f\xfd\x04\0a", "Zstandard"),
        (b"ARROW1\0\0\xff\xff\xff\xff", "Arrow"),
        (b"SQLite format 3\0\x10", "SQLite"),
    ],
    # the bytes have the time in them
    ids="tar tar.gz json.gz parquet zip bz2 xz zst arrow sqlite".split(),
)
def test_files_without_lines_are_named(data, form, set_stdin):
    for name in ("m.jsonl", "m.csv", "m.tsv"):
        refused = refusal(name, data)
        assert str(refused) == f"{name} is a {form} file, not a manifest of lines"
    set_stdin(data)
    with pytest.raises(ManifestError, match=f"standard input is a {form} file, not a manifest"):
        list(Inventory.scan(["-"]))


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        *(("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE")),
        ("utf-32", "UTF-32"),
    ],
)
@pytest.mark.parametrize(
    ("file", "text"), [("m.csv", "image\na.png\n"), ("m.jsonl", '{"image": "a.png"}\n')]
)
def test_encoding_is_named_with_its_conversion(file, text, encoding, name):
    refused = refusal(file, text.encode(encoding))
    assert str(refused) == f"{file} is {name}, not UTF-8"
    command = refused.hint.removeprefix("convert it: ")
    done = subprocess.run(command, shell=True, capture_output=True, check=True, timeout=60)
    assert done.stdout.decode().lstrip("\ufeff") == text


def test_comma_after_each_object_is_named_with_its_conversion():
    refused = refusal("m.jsonl", '{"image": "a.png", "n": [1]},\n{"image": "b.png"}, \r\n')
    assert str(refused) == "m.jsonl has a comma after the object on each line"
    subprocess.run(refused.hint.removeprefix("remove them: "), shell=True, check=True, timeout=60)
    assert [item.id for item in items("rows.jsonl")] == ["a.png", "b.png"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("m.csv", "image;note\na.png;x\n", "m.csv separates columns by semicolons, not by commas"),
        ("m.csv", "image\tnote\na.png\tx\n", "m.csv separates columns by tabs, not by commas"),
        ("m.tsv", "id,image\n1,a.png\n", "m.tsv separates columns by commas, not by tabs"),
        ("m.csv", "id|image\n1|a.png\n", "m.csv separates columns by bars, not by commas"),
        ("m.csv", "file;id\na.png;1\n", "m.csv separates columns by semicolons, not by commas"),
        ("m.csv", '"file,id"\na.png\n', "m.csv has no column 'image'"),
        ("m.csv", "sep=,\nimage,note\n", "m.csv, line 1: it names the delimiter, as Excel does"),
        ("m.csv", "image,,\na.png,,\n", "m.csv, line 1: the column '' occurs twice"),
    ],
)
def test_delimiters_and_first_lines_of_other_programs_are_named(file, text, message):
    assert str(refusal(file, text)).startswith(message)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.csv", "image,id\ra.png,1\rb.png,2\r"),
        ("m.tsv", "image\tid\ra.png\t1\rb.png\t2"),
        ("m.jsonl", '{"image": "a.png"}\r{"image": "b.png"}\r'),
    ],
)
def test_lines_that_end_with_carriage_returns_are_named(name, text):
    refused = refusal(name, text)
    assert str(refused) == f"{name} ends its lines with carriage returns, not with line feeds"
    subprocess.run(refused.hint.removeprefix("convert it: "), shell=True, check=True, timeout=60)
    new = ("new" if name == "rows.csv" else "rows") + Path(name).suffix
    assert [item.image for item in items(new)] == ["a.png", "b.png"]


@pytest.mark.parametrize("header", ["image , id", "id, image"])
def test_whitespace_around_the_name_of_a_column_is_named(header):
    refused = refusal("m.csv", f"{header}\na.png, 1\n")
    assert str(refused) == "m.csv has no column 'image'"
    assert refused.hint == "remove the whitespace around 'image' in its first line"


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("a\rb.png", "line 2: it has a carriage return outside quotes"),
        ('"a.png" b', "line 2: text follows the closing quote of a cell"),
        ('"a.png', "line 3: a quote is not closed"),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_damaged_cells_are_named(cell, reason, ending):
    assert str(refusal(f"m.{ending}", f"image\n{cell}\nb.png\n")) == f"m.{ending}, {reason}"


@pytest.mark.parametrize("ending", ["jsonl.gz", "tar.zst", "tar.bz2", "tar.xz", "zip", "7z"])
def test_compressed_files_are_rejected_by_kind(ending):
    refused = refusal(f"m.{ending}", b"x")
    kind = f".{ending.rpartition('.')[2]}"
    assert str(refused) == f"m.{ending} is a {kind} file, which pgcli does not read"


def test_list_of_paths_is_read_from_standard_input():
    refused = refusal("my list.txt", "a.png\n")
    assert refused.hint.endswith("`pgcli caption - < 'my list.txt'`")


@pytest.mark.parametrize(
    ("data", "format_"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
        (b"%PDF-1.7\n%\xe2\xe3\n", "PDF"),
        (b"8BPS\0\1" + bytes(20), "PSD"),
        (b"\xff\x0a\xfa\x1f", "JPEG XL"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
    ],
)
def test_unsupported_image_on_standard_input_is_an_error_row(set_stdin, data, format_):
    set_stdin(data)
    (item,) = Inventory.scan(["-"])
    fault = decode(item, ImageSpec(8), ImageLimits()).fault
    assert fault is not None
    assert fault.code == "unsupported_format"
    assert f"This is {format_}, " in fault.message


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (b"a.png\0b.png\0", "standard input, line 1: it contains a NUL byte", "--null"),
        (b"id,image\n1,a.png\n", HEADER, "the file"),
        (b"image\na.png\n", HEADER, "remove the line"),
        (b'\xef\xbb\xbf"image"\r\n"a.png"\r\n', HEADER, "remove the line"),
        (b"image\tid\na.png\t1\n", HEADER, "the file"),
        (b"id; image\n1; a.png\n", HEADER, "the file"),
        (b'["a.png"]', ARRAY, "jq"),
    ],
)
def test_other_lists_on_standard_input_are_named(set_stdin, data, message, hint):
    set_stdin(data)
    with pytest.raises(ManifestError) as refused:
        list(Inventory.scan(["-"]))
    assert str(refused.value).startswith(message)
    assert hint in refused.value.hint


def test_first_line_is_a_path_if_such_a_file_exists(set_stdin):
    Path("image").touch()
    set_stdin(b"image\na.png\n")
    assert [item.id for item in items("-")] == ["image", "a.png"]


@pytest.mark.parametrize(
    ("data", "reading"),
    [
        (b"image\0a.png\0", ReadOptions(null_separated=True)),
        (b"a.png\nimage\n", ReadOptions()),
        (b"http://a.example/x;image\n", ReadOptions()),
        (b"image\na.png\n", ReadOptions(image_column="path")),
    ],
)
def test_missing_image_named_like_the_column_is_no_header(set_stdin, data, reading):
    set_stdin(data)
    assert len(items("-", reading=reading)) == data.count(data[-1:])


def test_names_that_begin_like_other_files_are_paths(set_stdin):
    set_stdin(b"8BPS.png\nDDS a.png\nPAR1.png\nBZh9.png\nARROW1.png\na,image.png\n")
    assert len(items("-")) == 6


def test_carriage_returns_that_end_no_line_are_read():
    Path("m.csv").write_bytes(b'image,note\r\na.png,"one\rtwo"\r\n')
    (item,) = items("m.csv", reading=ReadOptions(keep=("note",)))
    assert item.kept == {"note": "one\rtwo"}
    Path("m.jsonl").write_bytes(b'{"image": "a.png"}\r')
    assert [item.id for item in items("m.jsonl")] == ["a.png"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (POINTER, "standard input is a Git LFS pointer, not the file itself"),
        (
            json.dumps(ROWS).encode(),
            "standard input is one JSON array, not a JSON object on each line",
        ),
        (json.dumps(ROWS, indent=1).encode(), ARRAY),
        ("a.png\n".encode("utf-16"), "standard input is UTF-16, not UTF-8"),
    ],
)
@pytest.mark.parametrize("spool", [False, True])
def test_standard_input_of_another_form_is_rejected(set_stdin, data, message, spool):
    set_stdin(data)
    with pytest.raises(UsageError) as refused:
        list(Inventory.scan(["-"], ReadOptions(spool=spool)))
    assert str(refused.value) == message


def test_path_may_begin_with_a_bracket_and_hold_a_carriage_return(set_stdin):
    Path("[a].png").touch()
    Path("c\rr.png").touch()
    set_stdin(b"[a].png\nc\rr.png\n[b].png\n")
    assert [item.id for item in items("-")] == ["[a].png", "c\rr.png", "[b].png"]
