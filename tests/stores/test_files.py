"""Files that a user names are opened only if they are regular, and in an allowed folder."""

import os
from pathlib import Path

import pytest

from pgcli.stores.files import (
    NotRegularFileError,
    OutsideFolderError,
    open_regular,
    read_json,
    read_text,
)
from tests.support.runs import ends_soon, run_python


@pytest.fixture(params=["linux", "no /proc"])
def system(request, monkeypatch) -> None:
    """Features that systems other than Linux lack."""
    if request.param != "linux":
        monkeypatch.setattr(Path, "readlink", missing)


def missing(*_: object) -> int:
    raise FileNotFoundError


def test_regular_file_is_read_through_links(tmp_path, system):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "b"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"1"
        with open_regular(tmp_path / name, str(tmp_path)) as file:
            assert file.read() == b"1"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_nothing_else_is_opened(tmp_path, system, make):
    make(tmp_path / "x")
    with ends_soon(), pytest.raises(NotRegularFileError):
        open_regular(tmp_path / "x")


def test_file_outside_its_folder_is_not_opened(tmp_path, system):
    (tmp_path / "in").mkdir()
    (tmp_path / "inside").write_bytes(b"1")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "inside")
    for path in (tmp_path / "inside", tmp_path / "in" / "link", tmp_path / "in" / ".." / "inside"):
        with pytest.raises(OutsideFolderError):
            open_regular(path, str(tmp_path / "in"))


def test_text_may_be_a_pipe_of_the_shell(tmp_path):
    (tmp_path / "a").write_bytes("é\r\nb\rc".encode())
    assert read_text(tmp_path / "a") == "é\nb\nc"
    (tmp_path / "a").write_bytes("\ufeffé\r\n\ufeff\ufeffb\r\ufeffc \ufeff".encode())
    assert read_text(tmp_path / "a") == "é\nb\nc \ufeff"
    code = "from pgcli.stores.files import read_text; print(read_text('/dev/stdin'))"
    assert run_python(code, input="piped") == "piped\n"


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a":' * 9999, '{"a":' * 99 + "1" + "}" * 99])
def test_damaged_object_reads_as_none(tmp_path, text):
    file = tmp_path / "x.json"
    assert read_json(file) is None
    file.write_text(text)
    assert read_json(file) is None
    file.write_bytes(b"\xff")
    assert read_json(file) is None
    file.write_text('{"a": 1}')
    assert read_json(file) == {"a": 1}
