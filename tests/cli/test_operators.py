"""What operators read: the log of JSON lines, the summary as JSON, `doctor --exit-code`."""

import json
import re
import sys
import time
import warnings
from datetime import datetime
from pathlib import Path

import pytest
from PIL import Image

from pgcli.cli import progress
from pgcli.images import ImageDecoder
from pgcli.run import model as running
from tests.support import pretend
from tests.support.runs import on_terminal

RUN = "caption photos --model demo"


@pytest.fixture(autouse=True)
def folder(workdir, pretended):
    """The current folder, with an image and a file that is none."""
    Path("photos").mkdir()
    Image.new("RGB", (40, 30), "red").save("photos/a.png")
    Path("photos/b.png").write_text("not an image")


def events(err):
    """The events of a log; every line has to be one."""
    found = [json.loads(line) for line in err.splitlines()]
    assert all(datetime.fromisoformat(event["time"]) for event in found)
    return found


def of_kind(kind, err):
    return [event for event in events(err) if event["event"] == kind]


def test_traceback_of_a_bug_is_an_event(cli, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a bug\x1b[2J")

    monkeypatch.setattr(running, "load_engine", fail)
    code, _, err = cli(f"{RUN} --log-format json")
    assert code == 1
    assert "\x1b" not in err
    kinds = [event["event"] for event in events(err)]
    assert kinds[-3:] == ["summary", "traceback", "error"]
    assert of_kind("summary", err)[0]["exit_code"] == 1


def test_warnings_and_log_records_of_libraries_are_events(cli, monkeypatch):
    import logging

    def load(*arguments, **options):
        warnings.warn("a library\nwarns", stacklevel=1)
        logging.getLogger("library").error("it %s", "failed")
        return pretend.load_model(*arguments, **options)

    monkeypatch.setattr(running, "load_engine", load)
    monkeypatch.setattr(logging.getLogger("library"), "handlers", [logging.StreamHandler()])
    monkeypatch.setattr(logging.getLogger("library"), "propagate", False)
    monkeypatch.setattr(warnings, "showwarning", print_warning)
    _, _, err = cli(f"{RUN} --log-format json --verbose")
    assert of_kind("table", err)
    assert of_kind("warning", err)[0]["category"] == "UserWarning"
    assert of_kind("log", err)[0] | {"time": ""} == {
        "time": "",
        "event": "log",
        "level": "error",
        "logger": "library",
        "message": "it failed",
    }


def print_warning(message, category, filename, lineno, file=None, line=None):
    """As Python does; pytest collects warnings instead."""
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def test_no_progress_shows_neither_bar_nor_lines(cli, monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0)
    assert "caption: 2 of 2 rows" in cli(RUN)[2]
    assert "of 2 rows" not in cli(f"{RUN} --no-progress")[2]
    assert not of_kind("progress", cli(f"{RUN} --no-progress --log-format json")[2])
    shown = {
        option: on_terminal("caption", "photos", "--model", "demo", "-o", "x.jsonl", *option)
        for option in [("--overwrite",), ("--overwrite", "--no-progress")]
    }
    assert [("━" in text) for text in shown.values()] == [True, False]
    assert all("rows" in text for text in shown.values())


def test_summary_in_the_log_has_the_times_of_stages(cli):
    code, _, err = cli(f"{RUN} -o rows.jsonl --log-format json")
    assert code == 3
    (summary,) = of_kind("summary", err)
    seconds = summary["seconds"]
    stages = {"total", "loading", "answering", "waited_for_images", "vision", "prefill", "decode"}
    assert seconds.keys() == stages
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    vision = sum(row["vision_ms"] or 0 for row in rows) / 1000
    assert seconds["vision"] == pytest.approx(vision, abs=0.001)
    assert seconds["total"] >= seconds["answering"] > 0


def test_a_run_says_while_it_lasts_that_its_model_waits_for_images(cli, monkeypatch):
    decode = ImageDecoder.__call__

    def slowly(decoder, item):
        time.sleep(0.5)
        return decode(decoder, item)

    monkeypatch.setattr(ImageDecoder, "__call__", slowly)
    monkeypatch.setattr("pgcli.run.progress.MIN_IMAGES", 1)
    monkeypatch.setattr("pgcli.run.progress.UPDATE_SECONDS", 0)
    monkeypatch.setattr(progress, "LOG_SECONDS", 0)
    hint = "the model waited [0-9]+% of the time for images: --fast-decode, more --workers or "
    code, _, err = cli(f"{RUN} -o rows.jsonl --log-format json")
    assert code == 3
    details = [event.get("details") or "" for event in of_kind("progress", err)]
    assert not details[0]
    assert any(re.match(hint, text) for text in details)
    assert re.match(hint, json.loads(Path("rows.jsonl.pgcli/owner.json").read_text())["hint"])
    assert re.search(f"pgcli: hint: {hint}", cli(f"{RUN} -o rows.jsonl --overwrite")[2])


def test_strict_doctor_exits_with_5_if_a_check_is_bad(cli, monkeypatch):
    from pgcli.doctor import checks
    from pgcli.doctor.checks import bad, ok, warn

    findings = [ok("pytorch", "2.6"), warn("login", "no token", "hf auth login")]
    monkeypatch.setattr(checks, "examine", lambda: list(findings))
    monkeypatch.setattr(
        "pgcli.cli.commands.models.check_config", lambda *_: ok("settings", "defaults")
    )
    assert cli("doctor --exit-code")[0] == 0
    findings.append(bad("disk", "full", "rm x"))
    assert cli("doctor")[0] == 0
    code, _, err = cli("doctor --exit-code")
    assert (code, err) == (5, "pgcli: bad on this machine: disk\nhint: rm x\n")
