"""export and view locate the images of rows wherever the run read them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from pgcli.inputs import tar as tars
from tests.support.awkward import chunk, encoded, make, tar_of
from tests.support.command import Command
from tests.support.misbehaving import Server
from tests.support.parsed_page import content, copy
from tests.support.runs import MANY, ROWS, finished, started, wait_until

#: Images of different widths, in several formats.
FORMATS = {"a.png": "PNG", "b.jpg": "JPEG", "sub/c.webp": "WEBP"}
IMAGES = {
    name: encoded(Image.new("RGB", (20 + number, 30), (9, 99, 60 * number)), format_)
    for number, (name, format_) in enumerate(FORMATS.items())
}


@pytest.fixture(autouse=True)
def model(pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pretended model, which every command names."""
    monkeypatch.setenv("PGCLI_MODEL", "demo")
    monkeypatch.setenv("PRETEND_ANSWERS", json.dumps(["cat", "dog", "cat"]))


def table(file: Any, images: list[Any], **more: list[Any]) -> None:
    parquet.write_table(pyarrow.table({"image": images, **more}), file)


def members(file: str | Path) -> dict[str, bytes]:
    """The images in a tar."""
    with tarfile.open(file) as archive:
        found = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
    return {name: data for name, data in found.items() if not name.endswith((".txt", ".json"))}


def files(folder: str | Path) -> dict[str, bytes]:
    """The images in a folder."""
    found = [one for one in Path(folder).rglob("*") if one.is_file()]
    return {
        str(one.relative_to(folder)): one.read_bytes()
        for one in found
        if one.suffix in (".png", ".jpg", ".webp", ".bmp")
    }


# --- archives


def test_archive_is_read_once_and_one_image_at_a_time(
    cli: Command, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("shard.tar.gz").write_bytes(tar_of(IMAGES.items(), "gz"))
    cli("caption", "shard.tar.gz", "-o", "rows.jsonl")
    read: list[str] = []
    stored = tars.read_member

    def recording_read(archive: Any, member: Any, most: int) -> bytes:
        read.append(member.name)
        return stored(archive, member, most)

    monkeypatch.setattr(tars, "read_member", recording_read)
    assert cli("export", "rows.jsonl", "--to", "webdataset", "-o", "out.tar")[0] == 0
    assert read == list(IMAGES)


@pytest.mark.nightly
def test_images_of_a_large_archive_are_not_all_in_memory(cli: Command, workdir: Path) -> None:
    image = encoded(Image.frombytes("RGB", (700, 700), os.urandom(700 * 700 * 3)), "BMP")
    code = (
        "import sys\n"
        "from pgcli.cli.main import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    peaks = []
    for count in (3, 60):
        Path("shard.tar").write_bytes(tar_of((f"{n:03}.bmp", image) for n in range(count)))
        cli("caption", "shard.tar", "-o", f"{count}.jsonl")
        command = ["export", f"{count}.jsonl", "--to", "webdataset", "-o", f"{count}.tar", "-q"]
        run = [sys.executable, "-c", code, *command]
        peaks.append(int(subprocess.check_output(run, timeout=100).split()[-1]))
    assert peaks[1] - peaks[0] < 20_000  # KB, of 84 MB of images


# --- tables


def test_file_with_the_name_of_table_bytes_is_not_used_for_them(
    cli: Command, workdir: Path
) -> None:
    other = encoded(Image.new("RGB", (20, 30), "red"), "PNG")
    Path("a.png").write_bytes(other)
    table("shop.parquet", [{"bytes": IMAGES["a.png"], "path": "a.png"}])
    assert cli("detect", "shop.parquet", "--object", "cat", "-o", "rows.jsonl")[0] == 0
    assert cli("export", "rows.jsonl", "--to", "imagefolder", "-o", "folder")[0] == 0
    assert files("folder") == {"a.png": IMAGES["a.png"]}
    assert cli("view", "rows.jsonl", "-o", "g.html", "--draw", "drawn")[0] == 0
    assert copy(content(workdir / "g.html"), 0).convert("RGB").getpixel((15, 15))[0] < 60  # type: ignore[index]
    with Image.open("drawn/a.png") as drawn:
        assert drawn.convert("RGB").getpixel((15, 25))[0] < 60  # type: ignore[index]


# --- missing inputs and images


def test_every_answered_awkward_image_is_exported_unchanged(cli: Command, workdir: Path) -> None:
    Path("odd").mkdir()
    make(workdir / "odd")
    lying = Image.Exif()
    lying[0x0112] = 6
    end = chunk(b"eXIf", lying.tobytes().removeprefix(b"Exif\0\0"))  # after the pixels
    late = IMAGES["a.png"][:-12] + end + IMAGES["a.png"][-12:]
    (workdir / "odd" / "late.png").write_bytes(late)
    assert cli("caption", "odd", "-o", "rows.jsonl", "--workers", "2")[0] == 3
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    good = sum(row["error"] is None for row in rows)
    assert next(row["width"] for row in rows if row["id"] == "late.png") == 30
    to = ("--to", "imagefolder", "--store-images", "copy", "-o", "folder")
    assert cli("export", "rows.jsonl", *to)[0] == 0
    assert len(Path("folder/metadata.jsonl").read_text().splitlines()) == good > 20


# --- pages written by a run


@pytest.mark.parametrize("output", ["-", "rows.jsonl"])
def test_prompts_side_by_side_show_images_of_an_archive(
    cli: Command, workdir: Path, output: str
) -> None:
    Path("shard.tar").write_bytes(tar_of(IMAGES.items()))
    prompts = ("--prompt", "what?", "--prompt", "what!")
    assert cli("ask", "shard.tar", *prompts, "-o", output, "--view", "page.html")[0] == 0
    shown = content(workdir / "page.html")
    assert [copy(shown, number).size for number in range(3)] == [(20, 30), (21, 30), (22, 30)]
    data = shown.named("data")
    assert [file["name"] for file in data["files"]] == ["what?", "what!"]
    assert data["cards"] == [[0, 3], [1, 4], [2, 5]]


# --- URLs


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(IMAGES["a.png"]) as one:
        one.files = {f"/{name}": data for name, data in IMAGES.items()}
        yield one


ALLOW_LOCAL_URLS = ("--allow-urls", "--allow-private-hosts")


def answered(cli: Command, server: Server) -> None:
    """Rows of images on the server, one of which is missing."""
    names = [*IMAGES, "good"]
    lines = [json.dumps({"image": f"{server.url}/{name}"}) for name in names]
    Path("shop.jsonl").write_text("\n".join(lines))
    words = ("detect", "shop.jsonl", "--object", "cat", "-o", "rows.jsonl", *ALLOW_LOCAL_URLS)
    assert cli(*words)[0] == 0
    del server.files["/b.jpg"]
    server.requests.clear()


def test_images_at_urls_are_exported_with_allow_urls(cli: Command, server: Server) -> None:
    answered(cli, server)
    to = ("export", "rows.jsonl", "--to", "yolo", "-o")
    code, _, err = cli(*to, "none")
    assert code == 3
    assert "4 images that cannot be read left out" in err
    assert "hint: --allow-urls fetches those at addresses" in err
    assert not server.requests
    code, _, err = cli(*to, "inwards", "--allow-urls")
    assert code == 3
    assert "--allow-private-hosts allows that" in err
    assert "hint:" not in err
    assert not server.requests
    code, _, err = cli(*to, "all", *ALLOW_LOCAL_URLS)
    assert code == 3
    assert "exported 3 images with 2 boxes" in err
    assert "3 images copied" in err
    assert f"{server.url}/b.jpg: There is nothing at the address." in err
    made = sorted(files("all/images").values())
    assert made == sorted([IMAGES["a.png"], IMAGES["a.png"], IMAGES["sub/c.webp"]])
    assert len({path for path, _ in server.requests}) == 4


def test_images_at_urls_are_shown_and_drawn_with_allow_urls(
    cli: Command, server: Server, workdir: Path
) -> None:
    answered(cli, server)
    to = ("view", "rows.jsonl", "--overwrite", "-o", "g.html")
    code, _, err = cli(*to)
    assert code == 0
    assert "4 images are not shown" in err
    assert "hint: --allow-urls fetches those at addresses" in err
    assert "--images" not in err
    assert not server.requests
    code, _, err = cli(*to, *ALLOW_LOCAL_URLS, "--draw", "drawn")
    assert code == 0
    assert "1 image is not shown" in err
    shown = content(workdir / "g.html")
    assert [copy(shown, number).size[0] for number in (0, 2, 3)] == [20, 22, 20]
    assert len(files("drawn")) == 3


@pytest.mark.slow
def test_permissions_of_a_run_do_not_apply_to_view(cli: Command, server: Server) -> None:
    held = io.BytesIO()
    table(held, [{"bytes": data, "path": name} for name, data in IMAGES.items()])
    server.files |= {"/shard.tar": tar_of(IMAGES.items()), "/shop.parquet": held.getvalue()}
    for name in ("shard.tar", "shop.parquet"):
        cli("caption", f"{server.url}/{name}", "-o", "rows.jsonl", "--overwrite", *ALLOW_LOCAL_URLS)
        server.requests.clear()
        to = ("--to", "webdataset", "--overwrite", "-o")
        code, _, err = cli("export", "rows.jsonl", *to, "out.tar")
        assert code == 3
        assert "hint: --allow-urls" in err
        assert cli("view", "rows.jsonl", "-o", "g.html", "--overwrite")[0] == 0
        assert not server.requests
        assert cli("export", "rows.jsonl", *to, "out.tar", *ALLOW_LOCAL_URLS)[0] == 0
        assert list(members("out.tar").values()) == list(IMAGES.values())


@pytest.mark.nightly
def test_export_of_a_killed_run_reports_where_it_ends(cli: Command, workdir: Path) -> None:
    output = workdir / "rows.jsonl"
    run = started("caption", *MANY, "-o", output, seconds=0.05)
    wait_until(lambda: output.exists() and output.read_bytes().count(b"\n") > 3)
    code, _, err = cli("export", output, "--to", "csv", "-o", "live.csv")
    run.kill()
    run.communicate(timeout=100)
    assert code == 0
    assert re.search(
        rf"the run is not finished: \d+ of {ROWS} rows so far; the export ends there", err
    )
    code, _, err = cli("export", output, "--to", "csv", "-o", "some.csv")
    assert code == 0
    assert re.search(rf"the run stopped at \d+ of {ROWS} rows; the export ends there", err)
    assert finished("caption", *MANY, "-o", output).returncode == 0
    assert "ends there" not in cli("export", output, "--to", "csv", "-o", "all.csv")[2]
