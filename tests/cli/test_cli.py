"""The command line: exit codes, standard output and error, and the sources of options."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from PIL import Image

from pgcli import __version__
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import BUILTIN, find
from pgcli.engine import loader
from pgcli.engine.memory import SHARE_OF_FREE, TOKENS_PER_PASS, batch_bytes
from pgcli.errors import PgcliError
from pgcli.inputs import Inventory
from pgcli.run import model as running
from tests.support import forkserver, pretend
from tests.support.awkward import drawing
from tests.support.runs import EXAMPLES, PRETEND, ROOT, finished, many, started, wait_until


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


@pytest.fixture
def config(tmp_path):
    """Writes the user's configuration file."""

    def write(text):
        file = tmp_path / "config" / "pgcli" / "config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("caption", "for example: pgcli caption photo.jpg"),
        ("captoin x", "did you mean pgcli caption?"),
        ("examples/images", "pgcli caption examples/images"),
        ("caption x -o", "see pgcli caption --help"),
        ("caption x --limit some", "--limit: 'some' is not a whole number"),
        ("caption x --temperature -1", "--temperature: '-1' is not a number of 0 or more"),
        ("caption x --temperature nan", "--temperature: 'nan' is not a number of 0 or more"),
        ("caption x --temperature inf", "--temperature: 'inf' is not a number of 0 or more"),
        ("caption x --top-p 0", "--top-p: '0' is not a number above 0 to 1"),
        ("caption x --top-p 1.5", "--top-p: '1.5' is not a number above 0 to 1"),
        ("caption x --top-k -1", "--top-k: '-1' is not a whole number of 0 or more"),
        ("caption x --region 5,0,5,9", "'5,0,5,9' is empty: xmin must be below xmax"),
        ("caption x --region 0,5,9,5", "'0,5,9,5' is empty"),
        ("caption x --keep a,,b", "'a,,b' is not a list of names"),
        ("caption x --format xml", "--format: 'xml' is not one of 'auto', 'jsonl', 'text'"),
        ("caption x --lang e/n", "not a language tag"),
        ("caption - -", "`-`) is named twice"),
        (
            "caption examples/images -o rows/ --format jsonl",
            "the name of a folder, and --format says jsonl",
        ),
        ("caption examples/images --retry-errors", "--retry-errors goes through all"),
        ("caption examples/images --revision main", "demo has no revisions to choose from"),
        ("caption examples/images --keep label", "no columns, so there is no 'label'"),
        ("ask examples/images --prompt a --prompt a", "given twice"),
        ("ask examples/images --prompt {what}", "no columns, so there is no 'what'"),
    ],
)
def test_2_names_the_mistake_and_a_hint(cli, monkeypatch, arguments, expected):
    monkeypatch.chdir(ROOT)
    code, out, err = cli(arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert [line.split(":")[0] for line in err.splitlines()] == ["pgcli", "hint"]


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
    folder, output = tmp_path / "images", tmp_path / "rows.jsonl"
    folder.mkdir()
    names = ("0 first", "1 gone", "2 cut", "3 emptied", "4 piped", "5 replaced", "6 last")
    first, gone, cut, emptied, piped, replaced, last = (folder / f"{name}.png" for name in names)

    def change_files():
        gone.unlink()
        cut.write_bytes(whole[: len(whole) // 2])
        emptied.write_bytes(b"")
        piped.unlink()
        os.mkfifo(piped)
        drawing(20, 10).save(replacement := tmp_path / "replacement.png")
        replacement.replace(replaced)

    drawing().save(first)
    whole = first.read_bytes()
    for file in (gone, cut, emptied, piped, replaced, last):
        file.write_bytes(whole)
    engine = EngineWithCallback(change_files)
    engine.label = find("demo").label
    monkeypatch.setattr(running, "load_engine", lambda *_, **__: engine)
    assert cli("caption", folder, "-o", output, "--model", "demo")[0] == 3
    assert [(row["error"], row["width"]) for row in rows(output.read_text())] == [
        *((None, 40), ("missing", None), ("truncated", 40), ("not_an_image", None)),
        *(("not_a_regular_file", None), (None, 20), (None, 40)),
    ]
    piped.unlink()
    for file in (gone, cut, emptied, piped):
        file.write_bytes(whole)
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    again = ("caption", folder, "-o", output, "--model", "demo", "--retry-errors")
    code, _, err = cli(*again)
    assert code == 13  # its answer is of other bytes than the run began with
    assert "5 replaced.png has changed" in err


def test_every_error_class_has_its_exit_code(cli, monkeypatch):
    def kinds(kind):
        return [kind, *(below for child in kind.__subclasses__() for below in kinds(child))]

    for kind in kinds(PgcliError):

        def fail(*_, kind=kind, **__):
            raise kind("it is so", hint="do this")

        monkeypatch.setattr(running, "load_engine", fail)
        code, _, err = cli("caption", EXAMPLES, "-q")
        assert (code, err) == (kind.exit_code, "pgcli: it is so\nhint: do this\n")


# sources of options


def model_named(cli, *arguments):
    """The model that a dry run names."""
    code, _, err = cli("caption", EXAMPLES, "--dry-run", *arguments)
    assert code == 0
    return next(line for line in err.splitlines() if "model: " in line).split("model: ")[1]


def test_flag_then_environment_then_configuration_file(cli, config, monkeypatch):
    assert model_named(cli) == "demo, the built-in one"
    config('model = "from/the-top"')
    assert model_named(cli) == "from/the-top"
    config('model = "from/the-top"\n[caption]\nmodel = "from/the-table"')
    assert model_named(cli) == "from/the-table"
    monkeypatch.setenv("PGCLI_MODEL", "from/the-environment")
    assert model_named(cli) == "from/the-environment"
    assert model_named(cli, "--model", "from/the-flag") == "from/the-flag"
    monkeypatch.setenv("PGCLI_QUIET", "1")
    assert cli("caption", EXAMPLES, "--dry-run") == (0, "", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[caption]\nlimits = 3", "no option is called 'caption.limits'"),
        ("[captions]\nlimit = 3", "no option is called 'captions'"),
        ("include = true", "include: True is neither a text nor a list of texts"),
        ("limit = [1]", "limit: [1] is not a whole number"),
        ("model = true", "model: True is not a text"),
        ("quiet = 'maybe'", "quiet: 'maybe' is neither true nor false"),
        ("limit = ", "cannot be read"),
    ],
)
def test_error_in_the_configuration_file_names_the_file(cli, config, text, expected):
    file = config(text)
    code, _, err = cli("caption", EXAMPLES, "--dry-run")
    assert code == 2
    assert err.startswith(f"pgcli: {file}")
    assert expected in err


# standard output and standard error


def test_dry_run_estimates_the_time(cli, pretended, tmp_path):
    code, out, err = cli("caption", *many(5), "-o", tmp_path / "rows.jsonl", "--dry-run")
    assert (code, out) == (0, ""), err
    assert re.search(r"^pgcli: time: about .* s; [\d.,]+ rows/s, by 16 images$", err, re.M)
    assert not list(tmp_path.glob("rows*"))


def test_dry_run_does_not_read_standard_input():
    run = finished("caption", "-", "--dry-run", stdin=subprocess.PIPE)
    assert run.returncode == 0
    assert b"as many as come on standard input" in run.stderr


@pytest.mark.parametrize(
    ("options", "new_tokens"),
    [(["--max-new-tokens", "300"], 300), (["--choice", "yes", "--choice", "no"], TOKENS_PER_PASS)],
)
def test_recorded_batch_size_is_that_of_the_question(
    cli, monkeypatch, tmp_path, options, new_tokens
):
    needed = batch_bytes(read_config(BUILTIN), 4, 9, new_tokens=new_tokens)
    monkeypatch.setattr(loader, "free_bytes", lambda device: int(needed / SHARE_OF_FREE) + 9)
    summary = tmp_path / "summary.json"
    model = ["--model", "demo", "--device", "cpu", "--dtype", "float32"]
    model += ["--summary-json", summary]
    code, _, err = cli("ask", EXAMPLES / "one.png", "--prompt", "what?", *options, *model)
    assert code == 0, err
    assert json.loads(summary.read_text())["batch_size"] == 9


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


def test_unnamed_built_in_model_stops_after_100_images_of_stdin(tmp_path):
    (tmp_path / "a.ppm").write_bytes(b"P6 1 1 255 abc")
    names = f"{tmp_path / 'a.ppm'}\n" * 150
    run = forkserver.run(["caption", "-", "-q"], env=os.environ, input=names, text=True)
    assert run.returncode == 2
    assert len(rows(run.stdout)) == 100
    assert "more than 100 images" in run.stderr


# signals and closed streams


@pytest.mark.parametrize(
    ("output", "options", "where"),
    [
        ("rows.parquet", [], "rows.parquet.pgcli/; rows.parquet appears when it is complete;"),
        ("rows/", [], "rows/ and rows.pgcli/;"),
        ("rows/", ["--join"], "rows/ and rows.pgcli/;"),
        ("rows/", ["--rows-per-file=1"], "rows/;"),
        ("rows.jsonl", [], "rows.jsonl;"),
    ],
)
def test_notice_says_where_the_rows_of_an_interrupted_run_are(tmp_path, output, options, where):
    run = started("caption", *many(20), "-o", output, *options, seconds=0.05, cwd=tmp_path)
    output = tmp_path / output
    files = f"{output.name}.pgcli/open/*", f"{output.name}/*", output.name
    wait_until(
        lambda: any(f.is_file() and f.stat().st_size for g in files for f in tmp_path.glob(g))
    )
    run.send_signal(signal.SIGINT)
    stderr = run.communicate(timeout=60)[1].decode()
    assert run.returncode == -signal.SIGINT
    assert f", saved in {where} the same command resumes the run" in stderr
    is_beside = any(tmp_path.glob(files[0]))
    assert is_beside == (".pgcli" in where)
    assert output.exists() == (output.suffix != ".parquet")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    output = tmp_path / "rows.jsonl"
    run = started(
        *("caption", EXAMPLES, "-o", output),
        seconds=0.05,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    wait_until(lambda: output.exists() and output.stat().st_size)
    run.send_signal(signal.SIGHUP)
    run.communicate(timeout=60)
    assert run.returncode == 0


@pytest.mark.slow
def test_streams_may_be_closed_from_the_start(tmp_path):
    output = tmp_path / "rows.jsonl"
    command = shlex.join([*PRETEND, "caption", str(EXAMPLES), "-o", str(output)])
    run = subprocess.run(["bash", "-c", f"{command} <&- >&- 2>&-"], check=False, timeout=100)
    assert run.returncode == 0
    assert len(rows(output.read_text())) == len(list(EXAMPLES.iterdir()))
    command = shlex.join([*PRETEND, "caption", str(EXAMPLES)])
    run = subprocess.run(
        ["bash", "-c", f"{command} >&-"], check=False, stderr=subprocess.PIPE, timeout=100
    )
    assert run.returncode == 14
    assert b"standard output is closed" in run.stderr


# unusual environments


def in_shell(line, **environment):
    """Run a shell line in which $PRETEND and $PGCLI are the program."""
    program = shlex.join([sys.executable, "-m", "pgcli"])
    named = {"PRETEND": shlex.join(PRETEND), "PGCLI": program, "IMAGES": str(EXAMPLES)}
    return subprocess.run(
        ["bash", "-c", line],
        env=os.environ | named | environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "line",
    ["$PGCLI --help", "$PGCLI --version", "$PGCLI ask --help", "$PRETEND caption $IMAGES -q"],
)
def test_full_standard_output_is_reported_in_one_line(line, unbuffered):
    run = in_shell(f"{line} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert run.returncode == 14
    stderr = run.stderr.decode().splitlines()
    assert [line[:6] for line in stderr] in (["pgcli:", "hint: "], ["pgcli:", "pgcli:", "hint: "])
    assert "standard output: No space left on device" in stderr[-2]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_log_on_a_full_disk_costs_no_rows(unbuffered):
    run = in_shell("$PRETEND caption $IMAGES 2> /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert run.returncode == 0
    assert len(rows(run.stdout)) == len(list(EXAMPLES.iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "env -u HOME -u XDG_CONFIG_HOME $PRETEND caption $IMAGES",
        "env -u XDG_CONFIG_HOME HOME=/nonexistent $PRETEND caption $IMAGES",
        "TERM=dumb $PRETEND caption $IMAGES",
        "TERM= $PRETEND caption $IMAGES --format text",
        "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 $PRETEND ask $IMAGES --prompt 猫",
        "PYTHONIOENCODING=ascii $PRETEND ask $IMAGES --prompt 猫",
        "TMPDIR=/nonexistent $PRETEND caption $IMAGES",
        "ulimit -n 64; $PRETEND caption $IMAGES $IMAGES/./ $IMAGES/././ --workers 4 --model demo",
        "$PRETEND caption $IMAGES <&- 2>&-",
        "COLUMNS=1 $PRETEND caption $IMAGES",
    ],
)
def test_run_works_in_a_bare_environment(line):
    run = in_shell(line)
    assert run.returncode == 0, run.stderr.decode()
    assert len(run.stdout.splitlines()) >= len(list(EXAMPLES.iterdir()))


def test_no_settings_are_read_from_the_current_folder(tmp_path):
    """A relative XDG_CONFIG_HOME is ignored: other users could create such a folder."""
    (tmp_path / "pgcli").mkdir()
    (tmp_path / "pgcli" / "config.toml").write_text("nonsense =")
    for home in ("", "."):
        line = f"cd {shlex.quote(str(tmp_path))} && $PRETEND caption $IMAGES -q"
        assert in_shell(line, XDG_CONFIG_HOME=home, HOME=str(tmp_path)).returncode == 0


@pytest.mark.parametrize(
    ("line", "code", "expected"),
    [
        ("cd $(mktemp -d) && rmdir $PWD && $PRETEND caption $IMAGES", 2, "cd into one that exists"),
        ("cd $(mktemp -d) && rmdir $PWD && $PRETEND caption .", 2, "the current folder"),
        (
            "env -u XDG_CONFIG_HOME HOME=/etc/passwd $PRETEND caption $IMAGES",
            2,
            "config.toml cannot",
        ),
        ("$PRETEND caption - <&-", 2, "standard input is closed"),
        ("$PRETEND caption $IMAGES -o $(printf %0260d 1).jsonl", 14, "File name too long"),
        ("$PRETEND caption $(printf %0260d 1).jsonl", 2, "does not exist"),
        ("$PRETEND caption $IMAGES -o /dev/full --format jsonl", 2, "is not a regular file"),
        ("$PRETEND caption $IMAGES -o /dev/stdout --format jsonl", 2, "is not a regular file"),
    ],
)
def test_impossible_run_names_the_reason(line, code, expected):
    run = in_shell(line)
    assert run.returncode == code
    assert expected in run.stderr.decode()
    assert "Traceback" not in run.stderr.decode()


def test_text_is_written_to_names_too_long_for_a_state_folder(cli, images, pretended, tmp_path):
    words = ["caption", images, "-o", tmp_path / ("n" * 250), "--format", "text", "--overwrite"]
    for _ in range(2):
        code, _, err = cli(*words)
        assert (code, "bug in pgcli" in err) == (3, False), err


def test_outputs_are_refused_before_the_input_is_opened(cli, tmp_path, pretended, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "filled").mkdir()
    (tmp_path / "filled" / "a.txt").touch()
    assert cli("caption", EXAMPLES, "-o", "rows.jsonl", "-q")[0] == 0
    monkeypatch.setattr(Inventory, "scan", lambda *_: pytest.fail("opened"))
    assert cli("caption", EXAMPLES, "-o", "rows.jsonl", "--seed", "1")[0] == 13
    assert cli("caption", EXAMPLES, "-o", "others.jsonl", "--draw", "filled")[0] == 13


def test_decoding_process_that_is_killed_while_it_starts_is_exit_17(
    pretended, images, cli, monkeypatch
):
    monkeypatch.setattr("pgcli.images.child_process._PROGRAM", "import os; os.kill(os.getpid(), 9)")
    code, _, err = cli("caption", images, "--workers", "1", "--model", "demo")
    assert code == 17
    assert "a process that decodes images cannot start: it was killed by SIGKILL" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("options", [[], ["--debug"], ["--on-error", "stop"]])
def test_run_continues_where_nobody_reads_standard_error(images, tmp_path, options):
    (images / "b.jpg").unlink()
    reader, writer = os.pipe()
    os.close(reader)
    output = tmp_path / "rows.jsonl"
    words = ["caption", str(images), "-o", str(output), "--model", "demo", *options]
    run = subprocess.run([*PRETEND, *words], stderr=writer, timeout=100, check=False)
    os.close(writer)
    assert run.returncode == 0
    assert len(rows(output.read_text())) == 2
