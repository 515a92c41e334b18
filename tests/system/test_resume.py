"""Killed, truncated and refused runs resume: no row is lost or repeated, and bytes are equal."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from pgcli.cli.job.output import open_saved_rows
from pgcli.cli.main import main
from pgcli.cli.result_files.run_status import read_run_status
from pgcli.cli.ui.console import Screen
from pgcli.errors import OutputExists, OutputFailed, OutputInUse
from pgcli.pipeline import answers
from pgcli.records import Answer
from pgcli.sinks import open_resumable, parquet_file, resumable
from pgcli.sinks.resumable import ResumableSink
from pgcli.state import atomic_file, early_answers, record_file
from pgcli.state.input_check import RowComparer
from pgcli.state.input_records import InputRecords
from pgcli.state.progress import FileCheckpoint
from pgcli.state.row_file import RowFile
from pgcli.state.run_state import RunState
from tests.support.fake_runs import (
    SCHEMA,
    Killed,
    answer,
    decode,
    item,
    keys_of,
    many,
    refuse,
    rows_as_text,
    rows_in,
    run_to,
    saved_keys,
    set_chunk_rows,
)
from tests.support.runs import finished

ROOT = Path(__file__).parents[2]
PRETEND = [sys.executable, str(ROOT / "tests" / "support" / "pretend.py")]
EXAMPLES = ROOT / "examples" / "images"
ITEMS = many(17)


def open_jsonl(state: RunState) -> ResumableSink:
    return open_resumable(state, SCHEMA, "jsonl", settings={})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    output = tmp_path_factory.mktemp("whole") / "rows.jsonl"
    run_to(output, ITEMS)
    assert saved_keys(output) == keys_of(ITEMS)
    return output.read_bytes()


# --- recovery of the output file


@pytest.mark.parametrize(
    "step",
    [
        29,
        pytest.param(8, marks=pytest.mark.nightly),
        pytest.param(1, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    "tail", [b"", b"\0" * 5000, b'{"index": 3, "half', b"\xff\xfe\n", b"[1]\n"]
)
def test_file_cut_at_any_byte_resumes_to_the_same_bytes(
    tmp_path: Path, whole: bytes, tail: bytes, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power loss here
    few = ITEMS[:3]
    whole = b"".join(whole.splitlines(keepends=True)[: len(keys_of(few))])
    for length in range(0, len(whole) + 1, step):
        output = tmp_path / f"{length}.jsonl"
        run_to(output, few, rows=0)
        output.write_bytes(whole[:length] + tail)
        kept = whole[:length].count(b"\n")
        processed = run_to(output, few, seed=length)
        assert output.read_bytes() == whole
        assert min(processed, default=kept) >= kept
        output.unlink()
        shutil.rmtree(output.with_name(f"{output.name}.pgcli"))


def test_torn_bytes_are_kept(tmp_path: Path, whole: bytes) -> None:
    output = tmp_path / "rows.jsonl"
    run_to(output, ITEMS, rows=5)
    with output.open("ab") as file:
        file.write(b'{"index": 1, "to')
    run_to(output, ITEMS)
    assert (tmp_path / "rows.jsonl.pgcli" / "torn").read_bytes() == b'{"index": 1, "to'


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_repeated_kills_lose_and_repeat_no_row(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    output = tmp_path_factory.mktemp("killed") / "rows.jsonl"
    before = 0
    while before < len(keys_of(ITEMS)):
        seed, more = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 9))
        processed = run_to(output, ITEMS, rows=more, seed=seed)
        now = len(rows_in(output))
        assert now >= min(before + more, len(keys_of(ITEMS)))
        assert all(row_index >= before for row_index in processed)
        before = now
    run_to(output, ITEMS)
    assert output.read_bytes() == whole


def test_journaled_answers_are_not_computed_again(tmp_path: Path) -> None:
    output, items = tmp_path / "rows.jsonl", [item(k) for k in range(20)]

    def backwards(stream: Any, processed: list[int]) -> Iterator[tuple[int, Answer]]:
        held = [(first, answer(image, "what?")) for first, image in stream]
        processed.extend(row_index for row_index, _ in held)
        yield from reversed(held)

    processed: list[int] = []
    with RunState(output) as state:
        state.check_settings({"seed": 0})
        sink = open_jsonl(state)
        rows = answers(
            items, decode, partial(backwards, processed=processed), refuse, resume_log=sink
        )
        journal = sink.journal

        def until_the_third(row_index: int, answer: Answer) -> None:
            if row_index == 2:
                raise Killed
            journal(row_index, answer)

        sink.journal = until_the_third  # type: ignore[method-assign]
        with pytest.raises(Killed):
            list(rows)
    assert processed == list(range(20))
    again = run_to(output, items)
    assert again == [0, 1, 2]
    assert saved_keys(output) == keys_of(items)


def test_journaled_answer_of_another_item_is_dropped(tmp_path: Path) -> None:
    output, items = tmp_path / "rows.jsonl", [item(k) for k in range(6)]
    with RunState(output) as state:
        state.check_settings({"seed": 0})
        sink = open_jsonl(state)
        image = next(iter(decode([items[5]])))
        sink.journal(5, answer(image, "what?"))
    other = [*items[:5], item(99)]
    assert 5 in run_to(output, other)
    assert saved_keys(output) == keys_of(other)


def test_journal_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_answers, "MIN_COMPACT_BYTES", 1000)
    journal = early_answers.Journal(tmp_path / "waiting.jsonl")
    row = json.dumps({"answer": "x" * 90})
    for row_index in range(1000):
        journal.add(row_index, row)
        if row_index >= 5:
            journal.remove(row_index - 5)
        assert journal.file.stat().st_size < 3000
    journal.close()
    assert set(early_answers.Journal(journal.file).load()) >= set(range(995, 1000))


def test_saved_rows_are_counted_not_parsed(tmp_path: Path) -> None:
    output, line = tmp_path / "rows.jsonl", json.dumps({"index": 1, "answer": "x" * 250}) + "\n"
    output.write_text(line * 100_000)
    seconds = []
    for checkpoint in (FileCheckpoint(100_000, output.stat().st_size), FileCheckpoint()):
        started = time.process_time()
        records, comparer = InputRecords(tmp_path / "inputs"), RowComparer(output)
        file = RowFile(output, tmp_path / "torn", checkpoint, records, comparer)
        seconds.append(time.process_time() - started)
        assert file.rows == 100_000
        file.close()
    assert seconds[0] < seconds[1] / 5


# --- other runs, settings and inputs


def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    run_to(output, ITEMS, rows=3, settings={"seed": 1, "prompts": ["a"]}.items())
    before = output.read_bytes()
    with pytest.raises(OutputExists, match="seed: 1 -> 2") as refused:
        run_to(output, ITEMS, settings={"seed": 2, "prompts": ["a"]}.items())
    assert "another -o" in refused.value.hint
    assert "--overwrite" in refused.value.hint
    assert output.read_bytes() == before


def test_output_without_a_run_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    output.write_text('{"index": 0}\n')
    with pytest.raises(OutputExists, match="cannot be resumed"):
        run_to(output, ITEMS)
    assert sorted(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("row_index", [0, 3, 11])
def test_changed_input_is_refused(tmp_path: Path, row_index: int) -> None:
    output = tmp_path / "rows.jsonl"
    run_to(output, ITEMS, rows=22)
    before = output.read_bytes()
    other = [*ITEMS[:row_index], item(99, ITEMS[row_index].prompts), *ITEMS[row_index + 1 :]]
    with pytest.raises(OutputExists, match="the input is not the one"):
        run_to(output, other)
    assert output.read_bytes() == before


@pytest.mark.parametrize("end", ["at once", "amid the rows that were there"])
def test_run_that_ends_early_keeps_the_checkpoint(tmp_path: Path, end: str) -> None:
    output = tmp_path / "rows.jsonl"
    run_to(output, ITEMS, rows=20)
    run_to(output, ITEMS[:3])  # as with a limit: nothing is new
    with RunState(output) as state, open_jsonl(state) as sink:
        state.check_settings({"seed": 0})
        for row_index in range(0 if end == "at once" else 5):
            index, prompt = keys_of(ITEMS)[row_index]
            assert not sink.is_missing(row_index, ITEMS[index], prompt)
    run_to(output, ITEMS)
    assert saved_keys(output) == keys_of(ITEMS)


def test_input_that_grew_at_its_end_resumes(tmp_path: Path) -> None:
    output, more = tmp_path / "rows.jsonl", [*ITEMS, *(item(k) for k in range(17, 30))]
    run_to(output, ITEMS)
    processed = run_to(output, more)
    assert min(processed) == len(keys_of(ITEMS))
    assert saved_keys(output) == keys_of(more)


def test_second_run_is_refused_and_names_the_first(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    with (
        RunState(output),
        pytest.raises(OutputInUse, match=f"process {os.getpid()}"),
        RunState(output),
    ):
        pytest.fail("two runs at once")
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_one_of_several_simultaneous_runs_gets_the_lock(tmp_path: Path) -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from pgcli.errors import OutputInUse
from pgcli.state.lock import output_lock
folder, go = Path(sys.argv[1]), Path(sys.argv[2])
for turn in range(40):
    while not (go / str(turn)).exists():
        time.sleep(0.001)
    try:
        with output_lock(folder):
            print(turn, flush=True)
            while not (go / f"{{turn}}-end").exists():
                time.sleep(0.001)
    except OutputInUse:
        pass
    (go / f"{{turn}}-{{sys.argv[3]}}").touch()
    while not (go / f"{{turn}}-end").exists():
        time.sleep(0.001)
"""
    folder, go = tmp_path / "state", tmp_path / "go"
    folder.mkdir()
    go.mkdir()
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, folder, go, str(number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(3)
    ]
    for turn in range(40):
        (go / str(turn)).touch()
        wait_until(lambda turn=turn: len(list(go.glob(f"{turn}-?"))) == 2)  # type: ignore[misc]
        (go / f"{turn}-end").touch()
        wait_until(lambda turn=turn: len(list(go.glob(f"{turn}-?"))) == 3)  # type: ignore[misc]
    won = [int(line) for one in runs for line in one.communicate(timeout=100)[0].splitlines()]
    assert sorted(won) == list(range(40))


def wait_until(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- retry of error rows


def test_retry_replaces_error_rows_in_their_old_order(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    run_to(output, ITEMS, broken={2, 5, 16})
    old = rows_in(output)
    processed = run_to(output, ITEMS, broken={5}, retry=True)
    new = rows_in(output)
    assert [row["error"] for row in new if row["index"] in (2, 16)] == [None] * 5
    assert {keys_of(ITEMS)[row_index][0] for row_index in processed} == {2, 16}
    assert [row for row in new if row["index"] not in (2, 16)] == [
        row for row in old if row["index"] not in (2, 16)
    ]
    assert saved_keys(output) == keys_of(ITEMS)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_retry_keeps_old_output_until_complete(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    output = tmp_path_factory.mktemp("retried") / "rows.jsonl"
    run_to(output, ITEMS, broken={0, 7, 8})
    old = output.read_bytes()
    for _ in range(3):
        run_to(output, ITEMS, rows=data.draw(st.integers(0, 9)), retry=True, seed=1)
        assert output.read_bytes() == old
    run_to(output, ITEMS, retry=True)
    assert output.read_bytes() == whole


def test_interrupted_retry_does_not_change_the_old_output(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    run_to(output, ITEMS, broken={0, 7, 16})
    run_to(output, ITEMS, rows=9, retry=True)
    with RunState(output) as state:
        state.check_settings({"seed": 0})
        sink = open_jsonl(state)
        assert sink.rows == len(keys_of(ITEMS))
        assert sink.errors.total() == sum(key[0] in (0, 7, 16) for key in keys_of(ITEMS))
    run_to(output, ITEMS, retry=True)
    with RunState(output) as state:
        state.check_settings({"seed": 0})
        assert not open_jsonl(state).errors


def test_retry_with_a_shorter_input_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    run_to(output, ITEMS, broken={1})
    old = output.read_bytes()
    with pytest.raises(OutputExists):
        run_to(output, ITEMS[:5], retry=True)
    assert output.read_bytes() == old


def test_retried_rows_stay_retried_after_an_interruption(tmp_path: Path) -> None:
    output, more = tmp_path / "rows.parquet", [*ITEMS, item(17)]
    run_to(output, ITEMS, broken={2})
    run_to(output, more, rows=0)  # opens the chunk again, and is killed
    run_to(output, ITEMS, retry=True)
    run_to(output, more)
    assert not [row for row in rows_in(output) if row["error"]]
    assert saved_keys(output) == keys_of(more)


def test_retry_closes_the_files_that_were_open_to_count_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, closed = tmp_path / "rows.jsonl", []
    run_to(output, ITEMS, broken={2})
    close = RowFile.close

    def note(file: RowFile) -> None:
        closed.append(file.file)
        close(file)

    monkeypatch.setattr(RowFile, "close", note)
    given = SimpleNamespace(
        output=SimpleNamespace(output=str(output), format="auto"),
        running=SimpleNamespace(retry_errors=True),
    )
    plan = SimpleNamespace(options=given, shard=None)
    input = SimpleNamespace(plan=plan, row_schema=SCHEMA)
    with RunState(output) as state:
        state.check_settings({"seed": 0})
        opened = open_saved_rows(input, state, {}, Screen(quiet=True))  # type: ignore[arg-type]
        assert opened.retries
        assert closed == [output]


# --- a limit below the number of saved rows


@pytest.fixture
def eight_images(tmp_path: Path) -> Path:
    """A folder of eight images, the fifth of which is damaged."""
    folder = tmp_path / "images"
    folder.mkdir()
    image = min(EXAMPLES.iterdir()).read_bytes()
    for number in range(1, 9):
        (folder / f"{number}.png").write_bytes(b"damaged" if number == 5 else image)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows/"])
def test_limit_below_the_saved_rows_loses_no_row(
    tmp_path: Path, eight_images: Path, name: str
) -> None:
    output = tmp_path / name
    command = ("caption", eight_images, "-o", f"{tmp_path}/{name}")
    assert finished(*command, "--on-error", "stop").returncode == 15
    before = rows_as_text(output)
    assert len(before) == 5
    existed = output.exists()
    assert finished(*command, "--limit", 2).returncode == 3
    assert rows_as_text(output) == before
    assert output.exists() == existed
    status = read_run_status(output)
    assert (status.state, status.rows, status.total) == ("stopped", 5, 8)
    completed = finished(*command)
    assert completed.returncode == 3, completed.stderr
    assert rows_as_text(output)[:5] == before
    assert [row["index"] for row in rows_in(output)] == list(range(8))


def test_empty_file_of_this_run_is_replaced(tmp_path: Path) -> None:
    """An earlier version published such a file when a limit was below the saved rows."""
    output = tmp_path / "rows.parquet"
    run_to(output, [])
    assert rows_in(output) == []
    run_to(output, [])
    run_to(output, ITEMS)
    assert saved_keys(output) == keys_of(ITEMS)


def test_file_of_another_program_is_not_replaced(tmp_path: Path) -> None:
    output, other = tmp_path / "rows.parquet", tmp_path / "other" / "rows.parquet"
    run_to(other, ITEMS[:2])
    run_to(output, ITEMS, rows=3)
    shutil.copy(other, output)
    with pytest.raises(OutputExists, match="another program"):
        run_to(output, ITEMS)
    assert output.read_bytes() == other.read_bytes()


# --- failing system calls


CALLS = (
    "pwrite",
    "fsync",
    "ftruncate",
    "open",
    "close",
    "link",
    "replace",
    "rename",
    "unlink",
    "mkdir",
)


class Failing:
    """Makes the `number`-th system call fail."""

    def __init__(self, number: int, problem: int):
        self.number, self.problem = number, problem
        self.calls, self.has_failed = 0, False

    def over(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls == self.number:
                self.has_failed = True
                raise OSError(self.problem, os.strerror(self.problem))
            return real(*given, **more)

        return call

    def within(self, patch: pytest.MonkeyPatch) -> None:
        for name in CALLS:
            patch.setattr(os, name, self.over(getattr(os, name)))
        for owner, name in ((parquet, "write_table"), (Path, "write_text"), (Path, "write_bytes")):
            patch.setattr(owner, name, self.over(getattr(owner, name)))
        patch.setattr(
            parquet.ParquetWriter, "write_table", self.over(parquet.ParquetWriter.write_table)
        )


@pytest.mark.parametrize(
    "step",
    [
        17,
        pytest.param(8, marks=pytest.mark.nightly),
        pytest.param(1, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    ("problem", "retry", "first"),  # other calls fail for want of space than by interruption
    [(errno.ENOSPC, False, 1), (errno.EINTR, False, 3), (errno.EIO, True, 2)],
)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows"])
def test_any_failing_system_call_loses_no_saved_row(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    problem: int,
    retry: bool,
    first: int,
    step: int,
) -> None:
    monkeypatch.setattr(resumable, "SECONDS_BETWEEN_SYNCS", 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for module in (record_file, parquet_file):  # reading does not fail
        monkeypatch.setattr(module, "open_regular", lambda path: path.open("rb"))
    monkeypatch.setattr(atomic_file, "read_text", lambda path: path.read_text())
    set_chunk_rows(3, monkeypatch)
    few, broken = ITEMS[:4], {1, 3} if retry else set()
    run_to(tmp_path / "whole" / name, few)
    whole = rows_as_text(tmp_path / "whole" / name)
    run_to(tmp_path / "before" / name, few, rows=None if retry else 0, broken=broken)
    for number in range(first, 1000, step):
        output, failing = tmp_path / str(number) / name, Failing(number, problem)
        if retry:
            shutil.copytree(tmp_path / "before", output.parent)
        else:
            output.parent.mkdir()
        before = rows_as_text(output)
        with monkeypatch.context() as patch:
            failing.within(patch)
            with suppress(OutputFailed):
                run_to(output, few, retry=retry)
                assert not failing.has_failed or rows_as_text(output) == whole
        if not failing.has_failed:
            assert number > 30
            return
        kept = rows_as_text(output)
        assert all(row in whole or row in before for row in kept)
        assert kept == whole[: len(kept)] if not retry else len(kept) == len(whole)
        run_to(output, few, retry=retry)
        assert rows_as_text(output) == whole


def test_interrupted_close_loses_nothing(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux has closed the file then; Python retries every other interrupted call."""
    real, broken_off = os.close, []

    def close(descriptor: int) -> None:
        real(descriptor)
        broken_off.append(descriptor)
        raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))

    output = tmp_path / "rows.jsonl"
    monkeypatch.setattr("pgcli.state.write_errors.os.close", close)
    run_to(output, ITEMS)
    assert len(broken_off) > 2
    monkeypatch.undo()
    assert output.read_bytes() == whole


def test_removed_output_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable, "SECONDS_BETWEEN_SYNCS", 0.0)
    output = tmp_path / "rows.jsonl"
    with RunState(output) as state:
        state.check_settings({})
        sink = open_jsonl(state)
        rows = answers([item(0), item(1)], decode, in_order, refuse, resume_log=sink)
        sink.save(next(rows))
        output.unlink()
        with pytest.raises(OutputFailed, match="removed or replaced"):
            sink.save(next(rows))


def in_order(stream: Any) -> Iterator[tuple[int, Answer]]:
    for first, image in stream:
        for number, prompt in enumerate(image.item.prompts):
            yield first + number, answer(image, prompt)


# --- refusals before any work


def open_no_input(*arguments: Any) -> None:
    pytest.fail("the input was opened")


@pytest.mark.parametrize("code", [12, 13])
def test_refused_output_exits_before_the_input_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    output = tmp_path / "rows.jsonl"
    run_to(output, ITEMS[:1])
    monkeypatch.setattr("pgcli.cli.job.run.open_input", open_no_input)
    with RunState(output) if code == 12 else nullcontext():
        assert main(["caption", str(EXAMPLES), "-o", str(output)]) == code
