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

from pgcli.cli.main import main
from pgcli.inputs import tar as tars
from tests.support import pretend
from tests.support.awkward import chunk, encoded, make
from tests.support.misbehaving import Server
from tests.support.parsed_page import content, copy
from tests.support.runs import MANY, ROWS, finished, started, wait_until

Capture = pytest.CaptureFixture[str]

#: Images of different widths, in several formats.
FORMATS = {"a.png": "PNG", "b.jpg": "JPEG", "sub/c.webp": "WEBP"}
IMAGES = {
    name: encoded(Image.new("RGB", (20 + number, 30), (9, 99, 60 * number)), format_)
    for number, (name, format_) in enumerate(FORMATS.items())
}
FOUND = json.dumps(["cat", "dog", "cat"])


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder, and a pretended model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pgcli.engine.loader.load", pretend.load_model)
    monkeypatch.setenv("PGCLI_MODEL", "demo")
    monkeypatch.setenv("PRETEND_ANSWERS", FOUND)
    return tmp_path


def done(*arguments: object) -> int:
    return main([str(one) for one in arguments])


def run_main(capsys: Capture, *arguments: object) -> tuple[int, str]:
    """The exit code and standard error of a command."""
    capsys.readouterr()
    return done(*arguments), capsys.readouterr().err


def archived(files: dict[str, bytes], kind: str = "") -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=f"w:{kind}") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return held.getvalue()


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
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("shard.tar.gz").write_bytes(archived(IMAGES, "gz"))
    done("caption", "shard.tar.gz", "-o", "rows.jsonl")
    read: list[str] = []
    stored = tars.read_member

    def recording_read(archive: Any, member: Any, most: int) -> bytes:
        read.append(member.name)
        return stored(archive, member, most)

    monkeypatch.setattr(tars, "read_member", recording_read)
    assert done("export", "rows.jsonl", "--to", "webdataset", "-o", "out.tar") == 0
    assert read == list(IMAGES)


@pytest.mark.nightly
def test_images_of_a_large_archive_are_not_all_in_memory(workdir: Path) -> None:
    image = encoded(Image.frombytes("RGB", (700, 700), os.urandom(700 * 700 * 3)), "BMP")
    code = (
        "import sys\n"
        "from pgcli.cli.main import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    peaks = []
    for count in (3, 60):
        Path("shard.tar").write_bytes(archived({f"{n:03}.bmp": image for n in range(count)}))
        done("caption", "shard.tar", "-o", f"{count}.jsonl")
        command = ["export", f"{count}.jsonl", "--to", "webdataset", "-o", f"{count}.tar", "-q"]
        run = [sys.executable, "-c", code, *command]
        peaks.append(int(subprocess.check_output(run, timeout=100).split()[-1]))
    assert peaks[1] - peaks[0] < 20_000  # KB, of 84 MB of images


# --- tables


def test_file_with_the_name_of_table_bytes_is_not_used_for_them(workdir: Path) -> None:
    other = encoded(Image.new("RGB", (20, 30), "red"), "PNG")
    Path("a.png").write_bytes(other)
    table("shop.parquet", [{"bytes": IMAGES["a.png"], "path": "a.png"}])
    assert done("detect", "shop.parquet", "--object", "cat", "-o", "rows.jsonl") == 0
    assert done("export", "rows.jsonl", "--to", "imagefolder", "-o", "folder") == 0
    assert files("folder") == {"a.png": IMAGES["a.png"]}
    assert done("view", "rows.jsonl", "-o", "g.html", "--draw", "drawn") == 0
    assert copy(content(workdir / "g.html"), 0).convert("RGB").getpixel((15, 15))[0] < 60  # type: ignore[index]
    with Image.open("drawn/a.png") as drawn:
        assert drawn.convert("RGB").getpixel((15, 25))[0] < 60  # type: ignore[index]


# --- missing inputs and images


@pytest.mark.slow
def test_only_images_are_exported_whatever_rows_name(capsys: Capture, workdir: Path) -> None:
    Path("odd").mkdir()
    make(workdir / "odd")
    bomb = Path("odd/text bomb.png").read_bytes()
    images = [IMAGES["a.png"], b"a secret", b"\x89PNG\r\n\x1a\n a secret", bomb]
    table("shop.parquet", images, id=["../../up.png", "/etc/hostile", "bad", "bomb"])
    done("detect", "shop.parquet", "--object", "cat", "-o", "rows.jsonl")
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert [row["error"] is None for row in rows] == [True, False, False, False]
    good = rows[0] | {"answer": "x"}
    lies = [good | {name: row[name] for name in ("index", "id", "image")} for row in rows]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lies))
    Path("in").mkdir()
    for to in ("yolo", "imagefolder", "webdataset"):
        code, err = run_main(capsys, "export", "rows.jsonl", "--to", to, "-o", f"in/{to}")
        assert code == 3
        assert "3 images that cannot be read left out" in err
    made = [one for one in Path("in").rglob("*") if one.is_file()]
    assert not any(b"a secret" in one.read_bytes() for one in made)
    assert not list(Path("..").glob("up.*"))
    assert list(members("in/webdataset").values()) == [IMAGES["a.png"]]


def test_every_answered_awkward_image_is_exported_unchanged(workdir: Path) -> None:
    Path("odd").mkdir()
    make(workdir / "odd")
    lying = Image.Exif()
    lying[0x0112] = 6
    end = chunk(b"eXIf", lying.tobytes().removeprefix(b"Exif\0\0"))  # after the pixels
    late = IMAGES["a.png"][:-12] + end + IMAGES["a.png"][-12:]
    (workdir / "odd" / "late.png").write_bytes(late)
    assert done("caption", "odd", "-o", "rows.jsonl", "--workers", "2") == 3
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    good = sum(row["error"] is None for row in rows)
    assert next(row["width"] for row in rows if row["id"] == "late.png") == 30
    to = ("--to", "imagefolder", "--store-images", "copy", "-o", "folder")
    assert done("export", "rows.jsonl", *to) == 0
    assert len(Path("folder/metadata.jsonl").read_text().splitlines()) == good > 20


# --- pages written by a run


@pytest.mark.parametrize("output", ["-", "rows.jsonl"])
def test_prompts_side_by_side_show_images_of_an_archive(workdir: Path, output: str) -> None:
    Path("shard.tar").write_bytes(archived(IMAGES))
    prompts = ("--prompt", "what?", "--prompt", "what!")
    assert done("ask", "shard.tar", *prompts, "-o", output, "--view", "page.html") == 0
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


def answered(server: Server) -> None:
    """Rows of images on the server, one of which is missing."""
    names = [*IMAGES, "good"]
    lines = [json.dumps({"image": f"{server.url}/{name}"}) for name in names]
    Path("shop.jsonl").write_text("\n".join(lines))
    assert (
        done("detect", "shop.jsonl", "--object", "cat", "-o", "rows.jsonl", *ALLOW_LOCAL_URLS) == 0
    )
    del server.files["/b.jpg"]
    server.requests.clear()


def test_images_at_urls_are_exported_with_allow_urls(capsys: Capture, server: Server) -> None:
    answered(server)
    to = ("export", "rows.jsonl", "--to", "yolo", "-o")
    code, err = run_main(capsys, *to, "none")
    assert code == 3
    assert "4 images that cannot be read left out" in err
    assert "hint: --allow-urls fetches those at addresses" in err
    assert not server.requests
    code, err = run_main(capsys, *to, "inwards", "--allow-urls")
    assert code == 3
    assert "--allow-private-hosts allows that" in err
    assert "hint:" not in err
    assert not server.requests
    code, err = run_main(capsys, *to, "all", *ALLOW_LOCAL_URLS)
    assert code == 3
    assert "exported 3 images with 2 boxes" in err
    assert "3 images copied" in err
    assert f"{server.url}/b.jpg: There is nothing at the address." in err
    made = sorted(files("all/images").values())
    assert made == sorted([IMAGES["a.png"], IMAGES["a.png"], IMAGES["sub/c.webp"]])
    assert len({path for path, _ in server.requests}) == 4


def test_images_at_urls_are_shown_and_drawn_with_allow_urls(
    capsys: Capture, server: Server, workdir: Path
) -> None:
    answered(server)
    to = ("view", "rows.jsonl", "--overwrite", "-o", "g.html")
    code, err = run_main(capsys, *to)
    assert code == 0
    assert "4 images are not shown" in err
    assert "hint: --allow-urls fetches those at addresses" in err
    assert "--images" not in err
    assert not server.requests
    code, err = run_main(capsys, *to, *ALLOW_LOCAL_URLS, "--draw", "drawn")
    assert code == 0
    assert "1 image is not shown" in err
    shown = content(workdir / "g.html")
    assert [copy(shown, number).size[0] for number in (0, 2, 3)] == [20, 22, 20]
    assert len(files("drawn")) == 3


@pytest.mark.slow
def test_permissions_of_a_run_do_not_apply_to_view(capsys: Capture, server: Server) -> None:
    held = io.BytesIO()
    table(held, [{"bytes": data, "path": name} for name, data in IMAGES.items()])
    server.files |= {"/shard.tar": archived(IMAGES), "/shop.parquet": held.getvalue()}
    for name in ("shard.tar", "shop.parquet"):
        done(
            "caption", f"{server.url}/{name}", "-o", "rows.jsonl", "--overwrite", *ALLOW_LOCAL_URLS
        )
        server.requests.clear()
        to = ("--to", "webdataset", "--overwrite", "-o")
        code, err = run_main(capsys, "export", "rows.jsonl", *to, "out.tar")
        assert code == 3
        assert "hint: --allow-urls" in err
        assert done("view", "rows.jsonl", "-o", "g.html", "--overwrite") == 0
        assert not server.requests
        assert done("export", "rows.jsonl", *to, "out.tar", *ALLOW_LOCAL_URLS) == 0
        assert list(members("out.tar").values()) == list(IMAGES.values())


@pytest.mark.nightly
def test_export_of_a_killed_run_reports_where_it_ends(capsys: Capture, workdir: Path) -> None:
    output = workdir / "rows.jsonl"
    run = started("caption", *MANY, "-o", output, seconds=0.05)
    wait_until(lambda: output.exists() and output.read_bytes().count(b"\n") > 3)
    code, err = run_main(capsys, "export", output, "--to", "csv", "-o", "live.csv")
    run.kill()
    run.communicate(timeout=100)
    assert code == 0
    assert re.search(
        rf"the run is not finished: \d+ of {ROWS} rows so far; the export ends there", err
    )
    code, err = run_main(capsys, "export", output, "--to", "csv", "-o", "some.csv")
    assert code == 0
    assert re.search(rf"the run stopped at \d+ of {ROWS} rows; the export ends there", err)
    assert finished("caption", *MANY, "-o", output).returncode == 0
    assert "ends there" not in run_main(capsys, "export", output, "--to", "csv", "-o", "all.csv")[1]
