"""Of images in archives only those are read that a row of the run needs; of tables, few more."""

import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.checkpoints.find import find
from pgcli.cli.main import main
from pgcli.run import model as running
from tests.support.awkward import tar_of
from tests.support.stores import bytes_read

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux counts the bytes that are read"
)

COUNT = 40


def noise(count: int) -> list[bytes]:
    """Images of 300 kB each that do not compress, so that bytes that are read can be told."""
    pixels = np.random.default_rng(0).integers(0, 255, (count, 320, 320, 3), np.uint8)
    files = [BytesIO() for _ in pixels]
    for image, file in zip(pixels, files, strict=True):
        Image.fromarray(image).save(file, "png", compress_level=0)
    return [file.getvalue() for file in files]


IMAGES = noise(COUNT)
SIZE = sum(map(len, IMAGES))


@pytest.fixture(autouse=True)
def model(pretended, monkeypatch) -> None:
    found = find("demo")  # reads the files of the model
    monkeypatch.setattr(running, "find_checkpoints", lambda *_: (found, None))
    # the digest of the model is its label
    monkeypatch.setattr("pgcli.run.state.record.find_local", lambda *_: found)


def write(name: str, images: list[bytes]) -> str:
    """A table of the images; by default pyarrow writes them as one page."""
    if name.endswith(".tar"):
        members = ((f"{number}.png", data) for number, data in enumerate(images))
        Path(name).write_bytes(tar_of(members))
        return name
    rows = [{"bytes": data, "path": f"{number}.png"} for number, data in enumerate(images)]
    pq.write_table(pa.table({"image": rows}), name, use_dictionary=False)
    return name


def share_read(*words: str, exit_code: int = 0) -> float:
    """The part of the images' bytes that a command reads."""
    before = bytes_read()
    options = ("--model", "demo", "--quiet", "--workers", "0")
    assert main(["caption", *words, *options]) == exit_code
    return (bytes_read() - before) / SIZE


def test_run_reads_the_images_of_its_rows():
    name = write("images.tar", IMAGES)
    for output in ("few.jsonl", "few/"):  # imports what the others need
        share_read(name, "-o", output, "--limit", "1")
    assert share_read(name, "-o", "shard/", "--shard", "1/8") < 0.3
    assert share_read(name, "-o", "one.jsonl", "--include", "*11.png") < 0.12
    for output in ("rows.jsonl", "rows/"):
        assert share_read(name, "-o", output, "--limit", "35") > 0.8
        assert share_read(name, "-o", output) < 0.3  # resumed
        assert share_read(name, "-o", output) < 0.1  # nothing is left to do
        assert main(["check", output]) == 0


def test_dry_run_reads_its_sample():
    count = 3 * COUNT
    name = write("images.tar", 3 * IMAGES)
    tiny = BytesIO()
    Image.new("RGB", (8, 8)).save(tiny, "png")
    write("tiny.tar", [tiny.getvalue()] * count)
    counts = []
    for source in ("tiny.tar", "tiny.tar", name):  # the first imports what the others need
        before = bytes_read()
        words = ["caption", source, "--dry-run", "-o", "x.jsonl", "--model", "demo"]
        assert main([*words, "--workers", "0"]) == 0
        counts.append(bytes_read() - before)
    assert counts[2] - counts[1] < 0.6 * 3 * SIZE  # 48 of 120
