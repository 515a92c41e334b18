"""Output of a run: a bar and a table on a terminal, plain lines in a log."""

import os
import re
from types import SimpleNamespace

import pytest
from PIL import Image
from rich.console import Console

from pgcli.cli import progress
from pgcli.cli.console import Screen, facts_table
from pgcli.cli.progress import StageProgress
from pgcli.run.model import EngineInfo
from pgcli.run.progress import Summary, Tally
from pgcli.run.request import make_request
from tests.support.runs import on_terminal

INFO = EngineInfo("pretended@1", "cpu", "float32", 8, {}, ())
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")
STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def images(tmp_path):
    for number in range(12):
        Image.new("RGB", (40, 30), "red").save(tmp_path / f"image-{number:02}.png")
    (tmp_path / "broken.png").write_text("no")
    return tmp_path


def lines(shown):
    """The lines that were written to the terminal, including those drawn over."""
    return [line.strip() for line in re.split(r"[\r\n]+", STEERING.sub("", shown))]


def test_terminal_shows_a_bar_and_then_two_lines(images, tmp_path):
    shown = on_terminal(
        *("caption", images, "--model", "demo", "-o", tmp_path / "rows.jsonl"),
        PRETEND_SECONDS="0.1",
    )
    assert "━" in shown
    plain = STEERING.sub("", shown)
    assert re.search(r"\d of 13  \d+\.\d/s  1 error  \d\.\d\d s left", plain)
    file = re.escape(str(tmp_path / "rows.jsonl"))
    end = "".join(plain[plain.index("pgcli: ") :].split())  # lines are wrapped
    expected = (
        rf"pgcli: 13 rows in {file}, 1 with errors: not_an_image 1"
        r"pgcli: [\d.]+ images/s; [\d.]+ s, including [\d.]+ s to load demo@\w+ on cpu in float32"
        r"hint: the same command with --retry-errors retries the failed rows"
    )
    assert re.fullmatch(expected.replace(" ", ""), end)


@pytest.mark.parametrize("columns", [20, 80])
def test_no_line_of_bar_or_summary_is_wider_than_the_terminal(images, tmp_path, columns):
    shown = on_terminal(
        *("caption", images, "--model", "demo", "-o", tmp_path / "r.jsonl"), columns=columns
    )
    # the terminal wraps hints
    assert max(len(line) for line in lines(shown) if not line.startswith("hint: ")) <= columns


def test_no_color_removes_colours_and_keeps_the_bar(images):
    arguments = ("caption", images, "--model", "demo", "-o", "rows.jsonl", "--overwrite")
    assert COLOUR.search(on_terminal(*arguments))
    without = on_terminal(*arguments, NO_COLOR="1")
    assert not COLOUR.search(without)
    assert "━" in without


def test_a_dumb_terminal_gets_plain_lines(images):
    shown = on_terminal("caption", images, TERM="dumb")
    assert "\x1b" not in shown
    assert "━" not in shown
    assert "images/s" in shown


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    time = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "perf_counter", lambda: time.now)
    return time


def logged(task, total=None):
    """A progress and the lines of its log."""
    lines = []
    return StageProgress(task, total, log=lambda p: lines.append(f"{p.task}: {p.line()}")), lines


def test_log_of_a_long_run_has_a_line_at_intervals(clock):
    log, lines = logged("caption", 100)
    clock.now = 1.0
    log.update(1)
    assert lines == []
    clock.now = 50.0
    log.update(25, errors=2)
    log.update(26)
    assert lines == ["caption: 25 of 100 rows (25%), 0.5/s, 2 errors, 2 min 30 s left"]
    log, lines = logged("ask")  # without a known total
    clock.now = 150.0
    log.update(700)
    assert lines == ["ask: 700 rows, 7.0/s"]


def test_foreign_text_is_escaped(capsys):
    hostile = "[bold]a[/bold] :smile: \x1b[31m\u202e"
    screen = Screen()
    screen.info(hostile, hint=hostile)
    screen.error(hostile)
    screen.table([(hostile, hostile)])
    screen.traceback([hostile])
    shown = capsys.readouterr().err
    assert shown.count(r"[bold]a[/bold] :smile: \x1b[31m\u202e") == 6
    console = Console(width=200, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    console.print(facts_table([("name", hostile)]))
    assert r"[bold]a[/bold] :smile: \x1b[31m\u202e" in console.export_text()


def test_a_message_of_megabytes_is_shortened(capsys):
    Screen().error(f"begun {'x' * 10**6} ended", hint="y" * 10**6)
    messages = capsys.readouterr().err
    assert len(messages) < 10_000
    assert "begun xxx" in messages
    assert "xxx ended" in messages
    assert "more characters" in messages


def summary_of(output="-", info=INFO, **values):
    request = make_request("caption", ["a.png"], {"output": output})
    return Summary(request, engine=info, **values)


@pytest.mark.parametrize(
    ("images", "waited", "busy", "options", "helps"),
    [
        (768, 71, 29, {}, "--fast-decode, more --workers or more cores"),
        (768, 71, 29, {"fast_decode": True}, "more --workers or more cores"),
        (768, 19, 81, {}, None),
        (768, 90, 95, {}, None),  # the GPU computed meanwhile
        (5, 71, 29, {}, None),
        (768, 71, 29, {"allow_urls": True}, None),
    ],
)
def test_summary_says_what_helps_a_model_that_waits(images, waited, busy, options, helps):
    times = {"waited_seconds": waited, "prefill_ms": 1000 * busy}
    tally = Tally(rows=images, images=images, seconds=100.0, **times)
    request = make_request("caption", ["photos"], options)
    summary = Summary(request, engine=INFO, engines=1, input_rows=images, tally=tally)
    hint = f"the model waited 71% of the time for images: {helps}"
    assert summary.waiting == (hint if helps else "")
    assert summary.values()["hint"] == (hint if helps else None)
    assert ("hint", hint) in summary.notes() or not helps
    summary.input_rows = None  # images that another program sends
    assert not summary.waiting


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_one_image_gets_an_answer_line_and_one_sentence(images, environment):
    image = images / "image-00.png"
    shown = on_terminal("caption", image, "--model", "demo", **environment)
    answer, *after = lines(shown.partition(f"{image}: ")[2])
    assert answer == "an image of 40 x 30"
    text = " ".join(line for line in after if line and "━" not in line)
    assert re.search(
        r"pgcli: [\d.]+ s, including [\d.]+ s to load demo@\w+ on cpu in float32$", text
    )
    assert "model waited" not in shown


def test_unsaved_rows_come_with_the_command_that_saves_them(images, tmp_path):
    assert "-o rows.jsonl saves" in on_terminal("caption", images, "--model", "demo")
    with open(tmp_path / "rows.jsonl", "wb") as rows:
        assert "-o rows.jsonl saves" not in on_terminal(
            "caption", images, "--model", "demo", stdout=rows
        )
