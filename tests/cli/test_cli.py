"""The command line: exit codes, standard output and error."""

import errno
import json
import os
import re
import signal
import subprocess
import tempfile

import pytest
from PIL import Image

from pgcli import __version__
from pgcli.checkpoints.find import find
from pgcli.errors import PgcliError
from pgcli.run import model as running
from tests.support import pretend
from tests.support.awkward import drawing
from tests.support.runs import EXAMPLES, PRETEND, many, started, wait_until


@pytest.fixture
def images(tmp_path):
    """A folder of three images, the middle one broken."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name, size in (("a.png", (40, 30)), ("c.png", (20, 60))):
        Image.new("RGB", size, "red").save(folder / name)
    (folder / "b.jpg").write_text("not an image")
    (folder / "notes.txt").write_text("left out")
    return folder


def rows(lines):
    return [json.loads(line) for line in lines.splitlines()]


# exit codes


def test_1_with_a_traceback_for_a_bug(cli, monkeypatch):
    def fail(*_, **__):
        raise LookupError("odd \x1b[31mthing")

    monkeypatch.setattr(running, "load_engine", fail)
    code, out, err = cli("caption", EXAMPLES)
    assert (code, out) == (1, "")
    assert "Traceback" in err
    assert r"unexpected LookupError: odd \x1b[31mthing" in err
    assert "\x1b" not in err


class EngineWithCallback(pretend.Engine):
    """An engine that calls a function before its first row."""

    def __init__(self, change_files):
        self.change_files = change_files

    def ask(self, stream, question, sampling, should_stop):
        for row_index, image in stream:
            if row_index == 0:
                self.change_files()
            yield from super().ask([(row_index, image)], question, sampling)


def test_files_that_change_during_a_run_cost_their_own_rows(cli, monkeypatch, tmp_path):
    monkeypatch.setattr("pgcli.images.pool.MAX_IMAGES_AHEAD", 1)
    folder, output = tmp_path / "images", tmp_path / "rows.jsonl"
    folder.mkdir()
    names = ("0 first", "1 read ahead", "2 gone", "3 cut", "4 replaced", "5 last")
    files = _, _, gone, cut, replaced, _ = [folder / f"{name}.png" for name in names]

    def change_files():
        gone.unlink()
        cut.write_bytes(whole[: len(whole) // 2])
        drawing(20, 10).save(replacement := tmp_path / "replacement.png")
        replacement.replace(replaced)

    for file in files:
        drawing().save(file)
    whole = gone.read_bytes()
    engine = EngineWithCallback(change_files)
    engine.label = find("demo").label
    monkeypatch.setattr(running, "load_engine", lambda *_, **__: engine)
    assert cli("caption", folder, "-o", output, "--model", "demo")[0] == 3
    errors = [(row["error"], row["width"]) for row in rows(output.read_text())]
    assert errors[:2] == [(None, 40)] * 2
    assert errors[2:] == [("missing", None), ("truncated", 40), (None, 20), (None, 40)]
    for file in (gone, cut):
        file.write_bytes(whole)
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    code, _, err = cli("caption", folder, "-o", output, "--model", "demo", "--retry-errors")
    assert code == 0, err
    again = [(row["error"], row["width"]) for row in rows(output.read_text())]
    assert again == [(None, 40)] * 4 + [(None, 20), (None, 40)]  # as it was read


def test_every_error_class_has_its_exit_code(cli, monkeypatch):
    def kinds(kind):
        return [kind, *(below for child in kind.__subclasses__() for below in kinds(child))]

    for kind in kinds(PgcliError):

        def fail(*_, kind=kind, **__):
            raise kind("it is so", hint="do this")

        monkeypatch.setattr(running, "load_engine", fail)
        code, _, err = cli("caption", EXAMPLES, "-q")
        assert (code, err) == (kind.exit_code, "pgcli: it is so\nhint: do this\n")


def test_full_temporary_folder_is_no_bug(cli, workdir, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", no_folder)
    code, _, err = cli("view", "-", "-q")
    assert (code, "pgcli: cannot write a temporary file: No usable" in err) == (14, True), err
    assert "TMPDIR" in err
    monkeypatch.setattr(tempfile, "gettempdir", full)
    code, _, err = cli("view", "-", "-q")
    assert (code, "pgcli: cannot write /tmp/one: No space left" in err) == (14, True), err


def full():
    raise OSError(errno.ENOSPC, "No space left on device", "/tmp/one")


def no_folder():
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")


# standard output and standard error


def test_parquet_metadata_has_the_settings(cli, tmp_path, pretended):
    from pyarrow import parquet

    output = tmp_path / "rows.parquet"
    command = ["ask", EXAMPLES, "--prompt", "what?", "--seed", "3", "-o", output]
    assert cli(*command)[0] == 0
    settings = json.loads(parquet.read_schema(output).metadata[b"pgcli"])
    assert settings["command"] == "ask"
    assert settings["prompts"] == ["what?"]
    assert settings["sources"] == [str(EXAMPLES)]
    assert (settings["model"], settings["seed"]) == (find("demo").label, 3)
    assert settings["versions"]["pgcli"] == __version__
    assert {"torch", "pillow", "tokenizers"} <= settings["versions"].keys()
    assert settings["fast_decode"] is False
    assert cli(*command, "--overwrite", "--fast-decode")[0] == 0
    settings = json.loads(parquet.read_schema(output).metadata[b"pgcli"])
    assert settings["fast_decode"] is True


# signals and closed streams


@pytest.mark.parametrize(
    ("output", "options", "is_beside"),
    [
        ("rows.parquet", [], True),
        ("rows/", [], True),
        ("rows/", ["--rows-per-file=1"], False),
        ("rows.jsonl", [], False),
    ],
)
def test_interrupted_run_says_how_to_resume(tmp_path, output, options, is_beside):
    run = started("caption", *many(20), "-o", output, *options, seconds=0.05, cwd=tmp_path)
    output = tmp_path / output
    files = f"{output.name}.pgcli/**/open/*", f"{output.name}/*", output.name
    wait_until(
        lambda: any(f.is_file() and f.stat().st_size for g in files for f in tmp_path.glob(g))
    )
    run.send_signal(signal.SIGINT)
    stderr = run.communicate(timeout=60)[1].decode()
    assert run.returncode == -signal.SIGINT
    assert re.search(r"stopped with \d+ rows? saved; the same command resumes the run", stderr)
    assert any(tmp_path.glob(files[0])) == is_beside
    assert output.exists() == (output.suffix != ".parquet")


# unusual environments


def test_run_continues_where_nobody_reads_standard_error(images, tmp_path):
    (images / "b.jpg").unlink()
    reader, writer = os.pipe()
    os.close(reader)
    output = tmp_path / "rows.jsonl"
    words = ["caption", str(images), "-o", str(output), "--model", "demo"]
    run = subprocess.run([*PRETEND, *words], stderr=writer, timeout=100, check=False)
    os.close(writer)
    assert run.returncode == 0
    assert len(rows(output.read_text())) == 2
