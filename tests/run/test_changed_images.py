"""Changed images are found on resume: in folders, and named by manifests and standard input."""

import io
import json
import os
import shutil
import time
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.run.state.saved import SavedRows

NAMES = [f"photos/{n}.ppm" for n in range(5)]
SOURCES = ["photos", "photos/*.ppm", "m.jsonl", "m.csv", "m.tsv", "m.parquet", "mixed.parquet", "-"]
OUTPUTS = ["rows.jsonl", "rows.parquet", "rows/"]


@pytest.fixture(autouse=True)
def photos(workdir, pretended, monkeypatch) -> None:
    Path("photos").mkdir()
    for number, name in enumerate(NAMES):
        save(name, 10 + number)
    Path("m.jsonl").write_text("".join(json.dumps({"image": n}) + "\n" for n in NAMES))
    Path("m.csv").write_text("image\n" + "\n".join(NAMES) + "\n")
    Path("m.tsv").write_text("image\n" + "\n".join(NAMES) + "\n")
    pq.write_table(pa.table({"image": NAMES}), "m.parquet")
    data = Path(NAMES[4]).read_bytes()
    structs = [{"path": n, "bytes": data if n == NAMES[4] else None} for n in NAMES]
    pq.write_table(pa.table({"image": structs}), "mixed.parquet")


def save(name: str, width: int, colour: str = "red") -> None:
    """An image with its own modification time; its file size depends on its width."""
    Image.new("RGB", (width, 8), colour).save(name)
    touch(name)


def touch(name: str) -> None:
    os.utime(name, ns=(time.time_ns(), Path(name).stat().st_mtime_ns + 10**9))


@pytest.fixture(params=SOURCES)
def run(request, cli, monkeypatch):
    """Runs the command with one source."""

    def run(*words: str, output: str = "rows.jsonl") -> tuple[int, str]:
        lines = io.TextIOWrapper(io.BytesIO("\n".join(NAMES).encode()))
        monkeypatch.setattr("sys.stdin", lines)
        words = ("caption", request.param, "-o", output, "--model", "demo", "--no-timing", *words)
        code, _, err = cli(*words)
        return code, " ".join(err.split())

    run.source = request.param
    return run


@pytest.mark.parametrize("colour", ["red", "blue"], ids=["another size", "the same size"])
@pytest.mark.parametrize("limit", [4, 9], ids=["incomplete", "complete"])
def test_changed_image_exits_with_13(run, cli, colour, limit):
    assert run("--limit", str(limit))[0] == 0
    rows = Path("rows.jsonl").read_bytes()
    save(NAMES[1], 11 if colour == "blue" else 30, colour)
    code, said = run()
    assert code == 13
    assert f"has changed: {NAMES[1]} hint:" in said
    assert "--retry-changed answers changed images again" in said
    save(NAMES[3], 40)
    code, said = run()
    of_all = "" if run.source == "-" else " of 5"
    assert f"has changed: 2{of_all} images: {NAMES[1]}, {NAMES[3]} hint:" in said
    assert (code, Path("rows.jsonl").read_bytes()) == (13, rows)
    if run.source != "-":
        code, out, _ = cli("check", "rows.jsonl")
        assert code == 5
        assert f"{NAMES[1]} has changed\n{NAMES[3]} has changed\n" in out


def test_touched_images_count_as_unchanged(run, cli):
    assert run("--limit", "3")[0] == 0
    for name in NAMES:
        touch(name)
    assert run("--limit", "4")[0] == 0
    for name in NAMES:
        touch(name)
    code, said = run()
    assert code == 0, said
    assert cli("check", "rows.jsonl")[0] == 0
    for name in NAMES:
        touch(name)
    assert run()[0] == 0
    assert cli("check", "rows.jsonl")[0] == 0


@pytest.mark.parametrize(
    ("run", "output", "limit"),
    [
        *((source, "rows.jsonl", 9) for source in SOURCES),
        *product(["photos", "m.parquet"], OUTPUTS[1:], [9]),  # whatever the source is
        *product(["photos", "-"], OUTPUTS, [3]),  # an incomplete output
    ],
    indirect=["run"],
)
def test_retry_changed_answers_rows_of_changed_images(run, output, limit):
    more = ["--rows-per-file", "2"] if output == "rows/" else []
    assert run(*more, "--limit", str(limit), output=output)[0] == 0
    save(NAMES[0], 30)
    save(NAMES[2], 12, "blue")
    before = read(output)
    code, said = run("--retry-changed", *more, output=output)
    assert code == 0, said
    assert "retrying 2 rows of changed images;" in said
    assert [row["width"] for row in read(output)] == [30, 11, 12, 13, 14]
    assert read(output)[1] == before[1]
    for words in ([], ["--retry-changed"]):
        code, said = run(*words, *more, output=output)
        assert (code, "nothing to do: all 5 rows are saved" in said) == (0, True)
    save(NAMES[2], 13)
    assert run(*more, output=output)[0] == 13


def read(output: str) -> list[dict]:
    if output.endswith(".jsonl"):
        return [json.loads(line) for line in Path(output).read_text().splitlines()]
    return pq.read_table(output).to_pylist()


@pytest.mark.parametrize(
    ("run", "output"),
    [("m.jsonl", "rows/"), ("m.csv", "rows.jsonl"), *product(["mixed.parquet"], OUTPUTS)],
    indirect=["run"],
)
def test_retry_counts_failed_and_changed_rows(run, output):
    """A missing image that appears is no change; both switches go together."""
    for number in (1, 3):
        Path(NAMES[number]).rename(f"{number}")
    assert run(output=output)[0] == 3
    save(NAMES[1], 20)
    code, said = run(output=output)
    assert (code, "2 of them failed" in said) == (3, True), said
    save(NAMES[0], 33)
    assert run(output=output)[0] == 13
    assert run("--retry-errors", output=output)[0] == 13
    code, said = run("--retry-changed", output=output)
    assert (code, "retrying" in said) == (3, True), said
    rows = read(output)
    assert [row["width"] for row in rows] == [33, None, 12, None, 14]
    assert [row["error"] for row in rows] == [None, "missing", None, "missing", None]
    save(NAMES[0], 34)
    code, said = run("--retry-changed", "--retry-errors", output=output)
    assert code == 3, said
    assert "retrying 2 failed rows and 1 row of changed images;" in said
    assert [row["width"] for row in read(output)] == [34, 20, 12, None, 14]
    code, said = run(output=output)
    assert (code, "all 5 rows are saved, 1 of them failed" in said) == (3, True), said


def test_removed_image_keeps_its_row(run, cli):
    assert run()[0] == 0
    Path(NAMES[2]).unlink()
    code, said = run()
    if run.source == "-":
        assert code == 0
        return
    assert (code, "1 row belongs to images that were removed from the input" in said) == (0, True)
    code, out, _ = cli("check", "rows.jsonl")
    assert (code, "4 of 5 rows match the input" in out) == (0, True)


def test_moved_sources_keep_their_names(cli, monkeypatch):
    words = ["caption", "photos/0.ppm", "photos/*.ppm", "--model", "demo", "--exclude", "*4*"]
    Path("photos/0.ppm").rename("photos/first.bmp")
    words[1] = "photos/first.bmp"
    output = Path("rows.jsonl").resolve()
    assert cli(*words, "-o", output)[0] == 0
    shutil.copytree("photos", "moved/photos")
    ways = words[0], "moved/photos/first.bmp", "moved/photos/*.ppm", *words[3:]
    code, _, err = cli(*ways, "-o", output)
    assert (code, "name the same sources in the same order" in " ".join(err.split())) == (
        13,
        True,
    )
    monkeypatch.chdir("moved")
    code, _, err = cli(*words, "-o", output)
    assert (code, "nothing to do" in err) == (0, True), err


@pytest.mark.parametrize("command", ["m.jsonl", "-"])
def test_retry_with_prompts_that_name_columns(cli, monkeypatch, command):
    """Equal prompts of an image are one row: numbers of rows do not follow from its index."""
    things = ["a", "b", "a"]
    lines = [json.dumps({"image": n, "x": x}) for n, x in zip(NAMES, things, strict=False)]
    Path("m.jsonl").write_text("".join(f"{line}\n" for line in lines))
    Path(NAMES[1]).rename("kept.ppm")

    def ask(*words: str) -> tuple[int, str]:
        data = io.TextIOWrapper(io.BytesIO(Path("m.jsonl").read_bytes()))
        monkeypatch.setattr("sys.stdin", data)
        prompts = ["--prompt", "{x}", "--prompt", "b", "-o", "rows.jsonl", "--model", "demo"]
        code, _, err = cli("ask", command, *prompts, *words)
        return code, " ".join(err.split())

    assert ask()[0] == 3
    assert [row["index"] for row in read("rows.jsonl")] == [0, 0, 1, 2, 2]
    Path("kept.ppm").rename(NAMES[1])
    code, said = ask("--retry-errors")
    assert (code, "retrying 1 failed row;" in said) == (0, True), said
    assert [row["width"] for row in read("rows.jsonl")] == [10, 10, 11, 12, 12]
    assert ask()[0] == 0
    save(NAMES[2], 50)
    assert ask()[0] == 13
    code, said = ask("--retry-changed")
    assert (code, "several prompts name columns" in said) == (2, True), said


@pytest.mark.parametrize("table", ["m.parquet", "m.jsonl", "m.csv", "photos.tar", "photos.tar.gz"])
def test_touched_table_counts_as_unchanged(cli, table):
    shutil.make_archive("photos", "tar", ".", "photos")
    shutil.make_archive("photos", "gztar", ".", "photos")
    words = ["caption", table, "-o", "rows.jsonl", "--model", "demo"]
    assert cli(*words, "--limit", "2")[0] == 0
    for _ in range(2):
        touch(table)
        code, _, err = cli(*words)
        assert code == 0, err
    assert cli("check", "rows.jsonl")[0] == 0
    data = bytearray(Path(table).read_bytes())
    data[len(data) // 2] ^= 1
    Path(table).write_bytes(data)
    touch(table)
    assert cli(*words)[0] == 13


def test_stamp_belongs_to_the_image_that_was_read(cli, monkeypatch):
    """The list of a folder is older than the answer of its last image."""
    words = ["caption", "photos", "-o", "rows.jsonl", "--model", "demo"]
    assert cli(*words, "--limit", "1")[0] == 0
    save(NAMES[4], 50)
    assert cli(*words)[0] == 0
    assert cli(*words)[0] == 0
    assert cli("check", "rows.jsonl")[0] == 0


def test_interrupted_retry_resumes(cli, monkeypatch):
    """The rows change all at once; an image that changes meanwhile is noticed afterwards."""
    words = ["caption", "m.jsonl", "-o", "rows.jsonl", "--model", "demo"]
    assert cli(*words)[0] == 0
    rows = Path("rows.jsonl").read_bytes()
    for number in (0, 1, 2):
        save(NAMES[number], 30 + number)
    merge = SavedRows.replace_rows
    monkeypatch.setattr(SavedRows, "replace_rows", lambda *_: 1 / 0)
    assert cli(*words, "--retry-changed")[0] == 1
    assert Path("rows.jsonl").read_bytes() == rows
    assert cli(*words)[0] == 13
    save(NAMES[1], 60)
    monkeypatch.setattr(SavedRows, "replace_rows", merge)
    code, _, err = cli(*words, "--retry-changed")
    assert code == 0, err
    assert [row["width"] for row in read("rows.jsonl")] == [30, 31, 32, 13, 14]
    assert cli(*words)[0] == 13
    assert cli(*words, "--retry-changed")[0] == 0
    assert [row["width"] for row in read("rows.jsonl")] == [30, 60, 32, 13, 14]
    assert cli(*words)[0] == 0
