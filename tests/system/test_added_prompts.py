"""A prompt that is added to a run asks only its own rows; the others are copied into the order."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.cli.job import loading
from pgcli.cli.main import main
from pgcli.records import Answer
from pgcli.sinks.reader import read_results
from tests.support import pretend
from tests.support.runs import started, wait_until

pytestmark = pytest.mark.usefixtures("clean_environment")

OUTPUTS = ["rows.jsonl", "rows.parquet", "rows/"]
COUNT = 7


class Killed(BaseException):
    """Ends a run as a signal would."""


class Engine(pretend.Engine):
    """Notes the rows that it is asked, and is killed after `most` of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.most = 10**9

    def ask(self, *given: Any, **more: Any) -> Iterator[tuple[int, Answer]]:
        for row_index, answer in super().ask(*given, **more):
            if len(self.asked) == self.most:
                raise Killed
            self.asked.append((answer.index, answer.prompt))
            yield row_index, answer


@pytest.fixture(autouse=True)
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The model, in a folder with images; their answers follow from their sizes."""
    engine = Engine()
    monkeypatch.setattr(loading, "load_model", lambda *given, **more: engine)
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number in range(COUNT):
        Image.new("RGB", (8 + number, 9)).save(f"photos/{number}.png")
    return engine


def ask(output: str, prompts: str, *options: str, source: str = "photos") -> int:
    """Ask a prompt of each letter."""
    given = [word for prompt in prompts for word in ("--prompt", prompt)]
    return main(["ask", source, *given, "-o", output, "--model", "demo", *options])


def keys(output: str) -> list[tuple[int, str]]:
    return [(row["index"], row["prompt"]) for row in read_results(Path(output))]


def every(prompts: str) -> list[tuple[int, str]]:
    return [(index, prompt) for index in range(COUNT) for prompt in prompts]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(("before", "prompts"), [("A", "AB"), ("AC", "BADC")])
def test_only_the_rows_of_added_prompts_are_asked(
    engine: Engine, output: str, before: str, prompts: str
) -> None:
    assert ask(output, before) == 0
    old = {(row["index"], row["prompt"]): dict(row) for row in read_results(Path(output))}
    engine.asked.clear()
    assert ask(output, prompts) == 0
    assert engine.asked == [key for key in every(prompts) if key[1] not in before]
    assert keys(output) == every(prompts)
    for row in read_results(Path(output)):
        assert row == old.get((row["index"], row["prompt"]), row)
    assert main(["check", output]) == 0
    assert ask(output, prompts) == 0
    assert ask(output, before) == 13
    assert not [path for path in Path(f"{Path(output)}.pgcli").iterdir() if "add" in path.name]


@pytest.mark.parametrize("output", OUTPUTS)
def test_prompt_is_added_to_an_unfinished_run(
    engine: Engine, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.most = 4
    with pytest.raises(Killed):
        ask(output, "A", "--rows-per-file", "3") if output == "rows/" else ask(output, "A")
    saved = keys(output)
    assert 1 <= len(saved) <= 4
    engine.asked.clear()
    engine.most = 5
    with pytest.raises(Killed):
        ask(output, "AB")
    assert "which keeps its rows until all of them are there" in capsys.readouterr().err
    assert keys(output) == saved
    engine.most = 10**9
    assert ask(output, "AB") == 0
    assert sorted(engine.asked) == [key for key in every("AB") if key not in saved]
    assert keys(output) == every("AB")
    assert main(["check", output]) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("output", ["rows/", *OUTPUTS[:2]])
def test_run_killed_while_it_replaces_the_output_loses_nothing(
    engine: Engine, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(output, "A") == 0
    state = Path(f"{Path(output)}.pgcli")
    shutil.copytree(".", "before", ignore=shutil.ignore_patterns("photos", "before"))
    for number in range(1, 100):
        for path in (state, Path(output)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        shutil.copytree("before", ".", dirs_exist_ok=True)
        with monkeypatch.context() as patch:
            is_killed = kill_at(number, state, patch)
            with suppress(Killed):
                assert ask(output, "AB", "--quiet") == 0
        assert main(["status", output]) == 0
        engine.asked.clear()
        assert ask(output, "AB", "--quiet") == 0
        assert engine.asked == []
        assert keys(output) == every("AB")
        assert not {path.name for path in state.iterdir()} & {"adding", "added", "placing"}
        if not is_killed():
            assert number > 8
            return


def kill_at(number: int, state: Path, patch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Kill the run at a call that renames or removes something, once all rows are answered."""
    calls = 0

    def over(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, *given: Any, **more: Any) -> Any:
            nonlocal calls
            if (state / "added").exists() or given == (state / "added",) or calls:
                calls += 1
                if calls == number:
                    raise Killed
            return real(path, *given, **more)

        return call

    for owner, name in ((Path, "rename"), (Path, "replace"), (shutil, "rmtree")):
        patch.setattr(owner, name, over(getattr(owner, name)))
    return lambda: calls >= number


@pytest.mark.slow
def test_sigkill_while_prompts_are_added_loses_no_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["ask", "photos", "--prompt", "A", "-o", "rows.jsonl"]
    assert ask("rows.jsonl", "A") == 0
    before = Path("rows.jsonl").read_bytes()
    run = started(*command, "--prompt", "B", seconds=0.2)
    new = Path("rows.jsonl.pgcli/adding/rows.jsonl")
    wait_until(lambda: new.exists() and new.read_bytes().count(b"\n") >= 4)
    for prompts in ("AB", "A"):
        assert ask("rows.jsonl", prompts) == 12
    assert main(["status", "rows.jsonl"]) == 0
    assert "running" in capsys.readouterr().out
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=60)
    assert Path("rows.jsonl").read_bytes() == before
    assert ask("rows.jsonl", "AB") == 0
    assert keys("rows.jsonl") == every("AB")


def test_status_and_page_say_that_prompts_are_being_added(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("rows.jsonl", "A") == 0
    engine.most = COUNT + 2
    with pytest.raises(Killed):
        ask("rows.jsonl", "AB")
    capsys.readouterr()
    assert main(["status", "rows.jsonl", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["state"], report["rows"], report["total"]) == ("stopped", COUNT, COUNT)
    assert report["adding"]["total"] == 2 * COUNT
    assert report["adding"]["rows"] < 2 * COUNT
    main(["status", "rows.jsonl"])
    assert f"of {2 * COUNT} (" in capsys.readouterr().out
    assert main(["view", "rows.jsonl", "-o", "page.html"]) == 0
    assert "prompts are being added" in Path("page.html").read_text()


def test_limit_leaves_the_output_until_its_rows_are_all_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ask("rows.jsonl", "A", "--limit", "4") == 0
    assert ask("rows.jsonl", "AB", "--limit", "5") == 0
    assert "not replaced yet" in capsys.readouterr().err
    assert keys("rows.jsonl") == every("A")[:4]
    assert ask("rows.jsonl", "AB", "--limit", "8") == 0
    assert keys("rows.jsonl") == every("AB")[:8]
    assert ask("rows.jsonl", "AB") == 0
    assert keys("rows.jsonl") == every("AB")


def test_error_rows_are_copied_unless_they_are_retried(engine: Engine) -> None:
    Path("photos/2.png").write_bytes(b"")
    assert ask("rows.jsonl", "A") == 3
    Image.new("RGB", (9, 9)).save("photos/2.png")
    assert ask("rows.jsonl", "AB") == 3
    errors = [row["error"] for row in read_results(Path("rows.jsonl"))]
    assert [key for key, error in zip(every("AB"), errors, strict=True) if error] == [(2, "A")]
    engine.asked.clear()
    assert ask("rows.jsonl", "ABC", "--retry-errors") == 0
    assert engine.asked == [key for key in every("ABC") if key[1] == "C" or key == (2, "A")]


@pytest.mark.parametrize(
    ("prompts", "options", "code"),
    [
        ("BA", [], 0),
        ("B", [], 13),
        ("AB", ["--max-new-tokens", "9"], 13),
        ("AB", ["--shard", "0/2"], 2),
        ("AB", ["--overwrite"], 0),
    ],
)
def test_other_changes_are_refused(prompts: str, options: list[str], code: int) -> None:
    assert ask("rows/", "A") == 0
    assert ask("rows/", prompts, *options) == code
    assert keys("rows/") == every(prompts if code == 0 else "A")


def test_order_of_earlier_prompts_must_stay(engine: Engine) -> None:
    assert ask("rows.jsonl", "AB") == 0
    assert ask("rows.jsonl", "BAC") == 13
    engine.most = len(engine.asked) + 2
    with pytest.raises(Killed):
        ask("rows.jsonl", "ABC")
    for prompts in ("AB", "ABD", "ABCD"):
        assert ask("rows.jsonl", prompts) == 13
    engine.most = 10**9
    assert ask("rows.jsonl", "AD", "--overwrite") == 0
    assert ask("rows.jsonl", "ADE") == 0


@pytest.mark.parametrize("output", OUTPUTS)
def test_prompt_is_added_to_a_run_that_stored_no_input(engine: Engine, output: str) -> None:
    """Rows of the first version are compared by what they show."""
    assert ask(output, "A") == 0
    shutil.rmtree(f"{Path(output)}.pgcli/inputs")
    engine.asked.clear()
    assert ask(output, "AB") == 0
    assert engine.asked == [key for key in every("AB") if key[1] == "B"]
    assert main(["check", output]) == 0


def test_changed_image_is_refused() -> None:
    assert ask("rows.jsonl", "A") == 0
    before = Path("rows.jsonl").read_bytes()
    Image.new("RGB", (8, 9), "red").save("photos/3.png")
    assert ask("rows.jsonl", "AB") == 13
    assert Path("rows.jsonl").read_bytes() == before


@pytest.mark.parametrize("output", ["rows.parquet", "rows/"])
def test_kept_columns_are_copied_as_they_are(output: str) -> None:
    seen = pa.array([10**18 + 1, None, 3], pa.int64()).view(pa.timestamp("ns", "UTC"))
    images = [f"photos/{number}.png" for number in range(3)]
    pq.write_table(pa.table({"image": images, "seen": seen}), "m.parquet")
    assert ask(output, "A", "--keep", "seen", source="m.parquet") == 0
    assert ask(output, "AB", "--keep", "seen", source="m.parquet") == 0
    kept = pq.read_table(output)["seen"]
    assert kept.type == seen.type
    assert kept.to_pylist() == [value for value in seen.to_pylist() for _ in "AB"]


def test_object_of_detect_each_is_a_prompt_that_can_be_added(engine: Engine) -> None:
    command = ["detect", "photos", "-o", "rows.jsonl", "--model", "demo", "--each"]
    assert main([*command, "--object", "cat"]) == 0
    engine.asked.clear()
    assert main([*command, "--object", "cat", "--object", "dog"]) == 0
    assert engine.asked == [(index, "detect dog") for index in range(COUNT)]
    assert main([*command[:-1], "--object", "cat", "--object", "dog"]) == 13
