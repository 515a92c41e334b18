"""What operators read: the log of JSON lines, the summary as JSON, `doctor --strict`."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from pgcli import __version__
from pgcli.cli.commands import doctor
from pgcli.cli.main import main
from pgcli.cli.ui import progress
from pgcli.errors import UsageError
from pgcli.run import model as running
from tests.support import pretend
from tests.support.runs import PRETEND
from tests.support.terminal import on_terminal

pytestmark = pytest.mark.usefixtures("clean_environment")

RUN = "caption photos --model demo"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with an image and a file that is none, and a pretended model."""
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Image.new("RGB", (40, 30), "red").save("photos/a.png")
    Path("photos/b.png").write_text("not an image")
    return tmp_path


def call(capsys, line):
    capsys.readouterr()
    code = main(line.split())
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def events(err):
    """The events of a log; every line has to be one."""
    found = [json.loads(line) for line in err.splitlines()]
    assert all(datetime.fromisoformat(event["time"]) for event in found)
    return found


def of_kind(kind, err):
    return [event for event in events(err) if event["event"] == kind]


def test_log_of_a_run_is_one_json_object_a_line(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0)
    code, out, err = call(capsys, f"{RUN} --log-format json --verbose")
    assert code == 3
    assert len(out.splitlines()) == 2
    assert {event["event"] for event in events(err)} == {"table", "progress", "summary"}
    counted = [event for event in of_kind("progress", err) if event["task"] == "counting"]
    assert [(event["done"], event["unit"]) for event in counted][-1] == (2, "images")
    shown = [event for event in of_kind("progress", err) if event["task"] == "caption"]
    assert [shown[0]["done"], shown[-1]["done"]] == [0, 2]
    assert {event["total"] for event in shown} == {2}
    assert shown[-1]["errors"] == 1
    assert shown[-1]["per_second"] > 0
    [summary] = of_kind("summary", err)
    assert summary["errors"] == {"not_an_image": 1}


def test_traceback_of_a_bug_is_an_event(capsys, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a bug\x1b[2J")

    monkeypatch.setattr(running, "load_engine", fail)
    code, _, err = call(capsys, f"{RUN} --log-format json")
    assert code == 1
    assert "\x1b" not in err
    kinds = [event["event"] for event in events(err)]
    assert kinds[-3:] == ["summary", "traceback", "error"]
    assert of_kind("summary", err)[0]["exit_code"] == 1


def test_warnings_and_log_records_of_libraries_are_events(capsys, monkeypatch):
    import logging

    def load(*arguments, **options):
        warnings.warn("a library\nwarns", stacklevel=1)
        logging.getLogger("library").error("it %s", "failed")
        return pretend.load_model(*arguments, **options)

    monkeypatch.setattr(running, "load_engine", load)
    monkeypatch.setattr(logging.getLogger("library"), "handlers", [logging.StreamHandler()])
    monkeypatch.setattr(logging.getLogger("library"), "propagate", False)
    monkeypatch.setattr(warnings, "showwarning", print_warning)
    _, _, err = call(capsys, f"{RUN} --log-format json")
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


def test_no_progress_shows_neither_bar_nor_lines(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0)
    assert "caption: 2 of 2 rows" in call(capsys, RUN)[2]
    assert "of 2 rows" not in call(capsys, f"{RUN} --no-progress")[2]
    assert not of_kind("progress", call(capsys, f"{RUN} --no-progress --log-format json")[2])
    shown = {
        option: on_terminal("caption", "photos", "--model", "demo", "-o", "x.jsonl", *option)
        for option in [("--overwrite",), ("--overwrite", "--no-progress")]
    }
    assert [("━" in text) for text in shown.values()] == [True, False]
    assert all("rows" in text for text in shown.values())


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "photos"])
def test_counting_the_input_shows_progress(capsys, monkeypatch, name):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0)
    Path("rows.jsonl").write_text('{"image": "photos/a.png"}\n' * 3)
    Path("rows.csv").write_text("image\n" + "photos/a.png\n" * 3)
    err = call(capsys, f"caption {name} --model demo --dry-run")[2]
    assert f"counting: {2 if name == 'photos' else 3} images, " in err


def test_tasks_without_a_count_have_the_same_display(monkeypatch):
    """Loading, and each step of verify and bench, as they take long with a large model."""
    shown = on_terminal(program=[sys.executable, "-c", STEPS])
    assert "━" in shown
    assert "verify: float32" in shown
    assert re.search(r"0\.\d\d s", shown)


STEPS = """
import time
from pgcli.cli.ui.console import Screen
with Screen().status("verify: float32"):
    time.sleep(0.5)
"""


def test_verify_and_bench_report_their_steps(capsys, monkeypatch):
    def stop(*_, waiting, **__):
        with waiting("running this code"):
            raise UsageError("stopped", hint="by the test")

    proof = SimpleNamespace(MAX_IMAGES=8, prove=stop)
    monkeypatch.setitem(sys.modules, "pgcli.proof", proof)
    report = SimpleNamespace(TowerProof=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "pgcli.proof.tower_report", report)
    images = SimpleNamespace(default_images=list, generate_images=lambda: iter(()))
    monkeypatch.setitem(sys.modules, "pgcli.proof.generated_images", images)
    monkeypatch.setitem(sys.modules, "pgcli.bench.benchmark", SimpleNamespace(bench=stop))
    for command in ("verify", "bench"):
        code, _, err = call(capsys, f"{command} demo --log-format json")
        assert code == 2, err
        assert "running this code" in {event["task"] for event in of_kind("progress", err)}


def test_log_of_json_lines_on_a_terminal_has_no_bar():
    shown = on_terminal(
        "caption", "photos", "--model", "demo", "-o", "x.jsonl", "--log-format=json"
    )
    assert "\x1b" not in shown
    assert events(shown.replace("\r", ""))


SUMMARY_KEYS = set(
    """pgcli command output host pid started ended exit_code error hint input_rows rows_before
    errors_before rows errors images tokens rows_per_second tokens_per_second seconds model device
    dtype batch_size""".split()
)


def read_summary(name="summary.json"):
    return json.loads(Path(name).read_text())


def rows_of(name="rows.jsonl"):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def test_summary_json_has_counts_errors_and_stage_times(capsys):
    code, *_ = call(capsys, f"{RUN} -o rows.jsonl --summary-json summary.json")
    summary = read_summary()
    assert summary.keys() == SUMMARY_KEYS
    assert summary["exit_code"] == code == 3
    wanted = {"rows": 2, "rows_before": 0, "input_rows": 2, "images": 2, "output": "rows.jsonl"}
    wanted |= {"errors": {"not_an_image": 1}, "model": rows_of()[0]["model"], "pgcli": __version__}
    assert wanted == {name: summary[name] for name in wanted}
    seconds = summary["seconds"]
    stages = {"total", "loading", "answering", "waited_for_images", "vision", "prefill", "decode"}
    assert seconds.keys() == stages
    rows = rows_of()
    vision = sum(row["vision_ms"] or 0 for row in rows) / 1000
    assert seconds["vision"] == pytest.approx(vision, abs=0.001)
    assert seconds["total"] >= seconds["answering"] > 0


def test_summary_of_an_interrupted_run_names_the_signal(folder):
    for number in range(30):
        shutil.copy("photos/a.png", f"photos/a{number}.png")
    line = f"{RUN} -o rows.jsonl --summary-json s.json --verbose"
    run = subprocess.Popen(
        [*PRETEND, *line.split()],
        cwd=folder,
        env=os.environ | {"PRETEND_SECONDS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    for shown in run.stderr:
        if "model: demo" in shown:
            break
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    assert read_summary("s.json")["exit_code"] == 143
    assert read_summary("s.json")["error"] == "ended by SIGTERM"


def test_strict_doctor_exits_with_5_if_a_check_is_bad(capsys, monkeypatch):
    from pgcli import doctor as checks
    from pgcli.doctor.finding import bad, ok, warn

    findings = [ok("pytorch", "2.6"), warn("login", "no token", "hf auth login")]
    monkeypatch.setattr(checks, "examine", lambda online: list(findings))
    monkeypatch.setattr(doctor, "check_config", lambda *_: ok("settings", "defaults"))
    assert call(capsys, "doctor --strict")[0] == 0
    findings.append(bad("disk", "full", "rm x"))
    assert call(capsys, "doctor")[0] == 0
    code, _, err = call(capsys, "doctor --strict")
    assert (code, err) == (5, "pgcli: bad on this machine: disk\nhint: rm x\n")


def test_version_has_a_short_form(capsys):
    assert call(capsys, "-V") == (0, f"pgcli {__version__}\n", "")
