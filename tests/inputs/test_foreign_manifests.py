"""Files of other forms in place of manifests are refused by their first line."""

import gzip
import json
from pathlib import Path

import pytest

from pgcli.errors import ManifestError, UsageError
from pgcli.inputs import Inventory, ReadOptions

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
ROWS = [{"image": "a.png"}, {"image": "b.png"}]


def refusal(name: str, text: bytes | str, reading: ReadOptions | None = None) -> UsageError:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as refused:
        Inventory.scan([name], reading or ReadOptions())
    return refused.value


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "csv", "tsv", "parquet", "tar", "tgz"])
def test_pointer_of_git_lfs_is_named(ending):
    refused = refusal(f"m.{ending}", POINTER)
    assert str(refused) == f"m.{ending} is a Git LFS pointer, not the file itself"
    assert "git lfs pull" in refused.hint


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (json.dumps(ROWS), ", line 1: it is not a JSON object"),
        (json.dumps(ROWS, indent=1), ", line 1: it is not valid JSON"),
        ('{"images": [],\n "annotations": []}', ", line 1: it is not valid JSON"),
        ('{"image": "a.png"}\n'.encode("utf-16"), ", line 1: it "),
        ('{"image": "a.png"}\n'.encode("utf-16-le"), ", line 1: it contains a NUL byte"),
        ('{"image": "a.png"}\r{"image": "b.png"}\r', ", line 1: it is not valid JSON"),
        (gzip.compress(b'{"image": "a.png"}\n', mtime=0), ", line 1: it "),
        (b"PAR1\x15\x04\nPAR1", ", line 1: it is not valid JSON"),
    ],
)
def test_file_of_another_form_is_refused_by_its_first_line(data, place):
    refused = refusal("m.jsonl", data)
    assert str(refused).startswith(f"m.jsonl{place}")
    assert 'each line must be a JSON object, such as {"image": "a.png"}' in refused.hint


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("m.csv", "image\na.png\n".encode("utf-16"), "m.csv, line 1 "),
        ("m.csv", "image\na.png\n".encode("utf-16-be"), "m.csv, line 1 contains a NUL byte"),
        ("m.csv", gzip.compress(b"image\na.png\n", mtime=0), "m.csv, line 1 "),
        ("m.csv", "image;note\na.png;x\n", "m.csv has no column 'image'"),
        ("m.csv", "image\tnote\na.png\tx\n", "m.csv has no column 'image'"),
        ("m.tsv", "id,image\n1,a.png\n", "m.tsv has no column 'image'"),
        ("m.csv", "image,,\na.png,,\n", "m.csv, line 1: the column '' occurs twice"),
        ("m.csv", "image,id\ra.png,1\r", "m.csv, line 1: new-line character seen in"),
    ],
)
def test_table_of_another_form_is_refused_by_its_first_line_or_columns(file, data, message):
    assert str(refusal(file, data)).startswith(message)


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (b"a.png\0b.png\0", "standard input, line 1: it contains a NUL byte", "--null"),
        ("a.png\n".encode("utf-16"), "standard input, line 1: it contains a NUL byte", "--null"),
        (b'{"image": "a.png"},\n', "standard input, line 1: it is not valid JSON", "correct"),
    ],
)
def test_other_lists_on_standard_input_are_named(set_stdin, data, message, hint):
    set_stdin(data)
    with pytest.raises(ManifestError) as refused:
        list(Inventory.scan(["-"]))
    assert str(refused.value).startswith(message)
    assert hint in refused.value.hint


@pytest.mark.parametrize("spool", [False, True])
def test_pointer_of_git_lfs_on_standard_input_is_named(set_stdin, spool):
    set_stdin(POINTER)
    with pytest.raises(ManifestError, match="standard input is a Git LFS pointer"):
        list(Inventory.scan(["-"], ReadOptions(spool=spool)))
