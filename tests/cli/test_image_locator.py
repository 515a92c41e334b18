"""export and view locate the images of rows wherever the run read them."""

import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pgcli.inputs import tar as tars
from tests.support.awkward import encoded, tar_of

#: Images of different widths, in several formats.
FORMATS = {"a.png": "PNG", "b.jpg": "JPEG", "sub/c.webp": "WEBP"}
IMAGES = {
    name: encoded(Image.new("RGB", (20 + number, 30), (9, 99, 60 * number)), format_)
    for number, (name, format_) in enumerate(FORMATS.items())
}


@pytest.fixture(autouse=True)
def model(pretended, monkeypatch) -> None:
    """A pretended model, which every command names."""
    monkeypatch.setenv("PGCLI_MODEL", "demo")


def test_archive_is_read_once_and_one_image_at_a_time(cli, workdir, monkeypatch):
    Path("shard.tar.gz").write_bytes(tar_of(IMAGES.items(), "gz"))
    cli("caption", "shard.tar.gz", "-o", "rows.jsonl")
    read: list[str] = []
    stored, add = tars.read_member, tarfile.TarFile.addfile

    def recording_read(archive: Any, member: Any, most: int) -> bytes:
        read.append(member.name)
        return stored(archive, member, most)

    def recording_add(archive: Any, member: Any, file: Any = None) -> None:
        read.append("written")
        add(archive, member, file)

    monkeypatch.setattr(tars, "read_member", recording_read)
    monkeypatch.setattr(tarfile.TarFile, "addfile", recording_add)
    assert cli("export", "rows.jsonl", "--to", "webdataset", "-o", "out.tar")[0] == 0
    image_text_and_row = ["written"] * 3
    assert read == [call for name in IMAGES for call in (name, *image_text_and_row)]
