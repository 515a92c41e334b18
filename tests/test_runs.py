"""pgcli.run: the rows, the checks and the resuming of the command line, from Python."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pgcli
from pgcli.checkpoints.find import find
from pgcli.cli.main import main
from pgcli.errors import NoInputError, OutputExists, TooManyErrors, UsageError
from pgcli.run.state.record import read_record
from pgcli.stores import open_folder
from tests.support import pretend
from tests.support.awkward import drawing, encoded

pytestmark = pytest.mark.usefixtures("clean_environment")


class CountingEngine(pretend.Engine):
    """The pretended engine, which counts the rows it answers, and may get a signal at one."""

    asked = 0
    interrupted_at = -1

    def ask(self, *given: Any, **more: Any) -> Iterator[Any]:
        for row in super().ask(*given, **more):
            self.asked += 1
            if self.asked == self.interrupted_at:
                signal.raise_signal(signal.SIGINT)
            yield row


@pytest.fixture
def engine(monkeypatch) -> CountingEngine:
    counting = CountingEngine()
    counting.label = find("demo").label
    monkeypatch.setattr("pgcli.engine.loader.open_engine", lambda *_, **__: counting)
    return counting


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """The current folder, with six images in photos/, one of them broken."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number in range(6):
        Path(f"photos/{number}.png").write_bytes(encoded(drawing(40 + number, 30), "PNG"))
    Path("photos/3.png").write_text("not an image")
    return tmp_path


@pytest.mark.parametrize("output", ["rows.jsonl", "rows.parquet", "rows/"])
def test_rows_equal_the_command_lines(engine, photos, output):
    options = {"model": "demo", "no_timing": True, "prompt": ["what?", "where?"]}
    report = pgcli.run("ask", "photos", output=output, **options)
    assert report == pgcli.RunReport(output, 12, {"not_an_image": 2})
    words = ["--model", "demo", "--no-timing", "--prompt", "what?", "--prompt", "where?"]
    assert main(["ask", "photos", "-o", f"shell-{output}", *words, "--quiet"]) == 3
    assert list(report.read()) == list(pgcli.read(f"shell-{output}"))


@pytest.mark.parametrize("first", ["python", "shell"])
def test_python_and_the_command_line_resume_each_other(engine, photos, first):
    def ask(by: str, limit: int = 99) -> int:
        if by == "shell":
            words = ["--model", "demo", "--limit", str(limit), "-q"]
            main(["caption", "photos", "-o", "rows.jsonl", *words])
            return len(Path("rows.jsonl").read_text().splitlines())
        options = {"model": "demo", "limit": limit}
        return pgcli.run("caption", "photos", output="rows.jsonl", **options).rows

    assert ask(first, 2) == 2
    assert ask("shell" if first == "python" else "python") == 6
    assert engine.asked == 5  # one image of six is broken
    assert [row.index for row in pgcli.read("rows.jsonl")] == list(range(6))
    assert ask(first) == 6
    assert engine.asked == 5


def test_errors_are_retried_and_reported(engine, photos):
    asked: dict[str, Any] = {"sources": ["photos"], "output": "rows.jsonl", "model": "demo"}
    assert pgcli.run("caption", **asked).errors == {"not_an_image": 1}
    Path("photos/3.png").write_bytes(Path("photos/1.png").read_bytes())
    report = pgcli.run("caption", **asked, retry_errors=True)
    assert (report.rows, report.errors) == (6, {})
    assert not report.read().errors


def test_interrupt_finishes_the_row_and_can_be_resumed(engine, photos):
    handler = signal.getsignal(signal.SIGINT)
    engine.interrupted_at = 2
    with pytest.raises(KeyboardInterrupt):
        pgcli.run("caption", "photos", output="rows.jsonl", model="demo", workers=0)
    assert signal.getsignal(signal.SIGINT) is handler
    assert 0 < len(pgcli.read("rows.jsonl")) < 6
    assert pgcli.run("caption", "photos", output="rows.jsonl", model="demo", workers=0).rows == 6
    assert engine.asked == 5


def test_options_have_the_names_of_the_command_line(engine, photos):
    row = {"image": "photos/0.png", "sku": 7, "colour": "red"}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    report = pgcli.run(
        "detect",
        [Path("rows.jsonl")],
        output=Path("out.jsonl"),
        model="demo",
        object=["cat", "--red car"],
        strict=True,
        keep=["sku", "colour"],
        region=(1, 2, 30, 20),
        limit=None,
        overwrite=False,
    )
    (answer,) = report.read()
    assert answer.prompt.startswith("detect cat ; --red car")
    assert answer.kept == {"sku": 7, "colour": "red"}
    record = read_record(open_folder("out.jsonl.pgcli"))
    assert record is not None
    assert record.settings["strict"] is True
    assert record.settings["region"] == [1, 2, 30, 20]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"command": "describe"}, UsageError),
        ({"output": "-"}, UsageError),
        ({"output": "rows.txt"}, UsageError),
        ({"output": "rows.txt", "format": "text"}, UsageError),
        ({"limits": 3}, UsageError),
        ({"limit": "many"}, UsageError),
        ({"sources": "nowhere", "output": "new.jsonl"}, UsageError),
        ({"sources": "empty", "output": "new.jsonl"}, NoInputError),
        ({"lang": "de"}, OutputExists),
        ({"sources": "empty"}, OutputExists),
        ({"max_errors": 0, "output": "new.jsonl"}, TooManyErrors),
    ],
)
def test_errors_of_the_command_line_are_raised(engine, photos, changes, error):
    Path("empty").mkdir()
    asked: dict[str, Any] = {"command": "caption", "sources": "photos", "output": "rows.jsonl"}
    pgcli.run(**asked, model="demo")
    before = Path("rows.jsonl").read_bytes()
    with pytest.raises(error) as refused:
        pgcli.run(**asked | {"model": "demo"} | changes)
    assert getattr(refused.value, "hint", "")
    assert Path("rows.jsonl").read_bytes() == before


def test_progress_is_shown_on_request_only(engine, photos, capfd):
    pgcli.run("caption", "photos", output="a.jsonl", model="demo")
    assert capfd.readouterr() == ("", "")
    pgcli.run("caption", "photos", output="b.jsonl", model="demo", progress=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "6 rows in b.jsonl, 1 with errors: not_an_image 1" in shown.err
    assert "the same command with --retry-errors retries the failed rows" in shown.err
