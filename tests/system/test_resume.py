"""Runs that are killed, cut, refused and gone on with: no row lost, none twice, the same bytes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from pgcli.errors import OutputExists, OutputFailed, OutputInUse
from pgcli.pipeline import answers
from pgcli.records import Answer
from pgcli.sinks import open_resumable, resumable
from pgcli.sinks.resumable import ResumableSink
from pgcli.state import journal as journals
from pgcli.state.run_state import RunState
from tests.support.making import (
    LAYOUT,
    Killed,
    answer,
    chunks_of,
    item,
    key_of,
    look,
    made,
    many,
    places,
    refuse,
    row_texts,
    rows_in,
)

ROOT = Path(__file__).parents[2]
PRETEND = [sys.executable, str(ROOT / "tests" / "support" / "pretend.py")]
EXAMPLES = ROOT / "examples" / "images"
ITEMS = many(17)


def open_jsonl(state: RunState) -> ResumableSink:
    return open_resumable(state, LAYOUT, "jsonl", settings={})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    output = tmp_path_factory.mktemp("whole") / "rows.jsonl"
    made(output, ITEMS)
    assert places(output) == key_of(ITEMS)
    return output.read_bytes()


# --- the file is its own record


@pytest.mark.parametrize(
    "tail", [b"", b"\0" * 5000, b'{"index": 3, "half', b"\xff\xfe\n", b"[1]\n"]
)
def test_cut_at_any_byte_and_gone_on_with_it_is_the_same_file(
    tmp_path: Path, whole: bytes, tail: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the power stays on
    few = ITEMS[:3]
    whole = b"".join(whole.splitlines(keepends=True)[: len(key_of(few))])
    for length in range(0, len(whole) + 1, 1 if not tail else 13):
        output = tmp_path / f"{length}.jsonl"
        made(output, few, rows=0)
        output.write_bytes(whole[:length] + tail)
        kept = whole[:length].count(b"\n")
        asked = made(output, few, seed=length)
        assert output.read_bytes() == whole
        assert min(asked, default=kept) >= kept
        for left in (output, *output.with_name(f"{output.name}.pgcli").iterdir()):
            left.unlink()


def test_what_was_cut_is_kept_aside(tmp_path: Path, whole: bytes) -> None:
    output = tmp_path / "rows.jsonl"
    made(output, ITEMS, rows=5)
    with output.open("ab") as file:
        file.write(b'{"index": 1, "to')
    made(output, ITEMS)
    assert (tmp_path / "rows.jsonl.pgcli" / "torn").read_bytes() == b'{"index": 1, "to'


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_killed_again_and_again_no_row_is_lost_or_made_twice(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    output = tmp_path_factory.mktemp("killed") / "rows.jsonl"
    before = 0
    while before < len(key_of(ITEMS)):
        seed, more = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 9))
        asked = made(output, ITEMS, rows=more, seed=seed)
        now = len(rows_in(output))
        assert now >= min(before + more, len(key_of(ITEMS)))
        assert all(place >= before for place in asked)
        before = now
    made(output, ITEMS)
    assert output.read_bytes() == whole


def test_rows_that_waited_when_it_was_killed_are_not_asked_again(tmp_path: Path) -> None:
    output, items = tmp_path / "rows.jsonl", [item(k) for k in range(20)]

    def backwards(stream: Any, asked: list[int]) -> Iterator[tuple[int, Answer]]:
        held = [(first, answer(picture, "what?")) for first, picture in stream]
        asked.extend(place for place, _ in held)
        yield from reversed(held)

    asked: list[int] = []
    with RunState(output) as state:
        state.check_settings({"seed": 0})
        sink = open_jsonl(state)
        told = answers(items, look, partial(backwards, asked=asked), refuse, resume_log=sink)
        journal = sink.journal

        def until_the_third(place: int, answer: Answer) -> None:
            if place == 2:
                raise Killed
            journal(place, answer)

        sink.journal = until_the_third  # type: ignore[method-assign]
        with pytest.raises(Killed):
            list(told)
    assert asked == list(range(20))
    again = made(output, items)
    assert again == [0, 1, 2]
    assert places(output) == key_of(items)


def test_a_row_that_waited_is_not_taken_for_one_of_another_item(tmp_path: Path) -> None:
    output, items = tmp_path / "rows.jsonl", [item(k) for k in range(6)]
    with RunState(output) as state:
        state.check_settings({"seed": 0})
        sink = open_jsonl(state)
        picture = next(iter(look([items[5]])))
        sink.journal(5, answer(picture, "what?"))
    other = [*items[:5], item(99)]
    assert 5 in made(output, other)
    assert places(output) == key_of(other)


def test_the_journal_grows_no_larger_than_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MIN_COMPACT_BYTES", 1000)
    journal = journals.Journal(tmp_path / "waiting.jsonl")
    row = json.dumps({"answer": "x" * 90})
    for place in range(1000):
        journal.add(place, row)
        if place >= 5:
            journal.remove(place - 5)
        assert journal.file.stat().st_size < 3000
    journal.close()
    assert set(journals.Journal(journal.file).load()) >= set(range(995, 1000))


def test_a_million_rows_are_counted_and_not_read(tmp_path: Path) -> None:
    from pgcli.state.progress import FileCheckpoint
    from pgcli.state.row_file import RowFile

    output, line = tmp_path / "rows.jsonl", json.dumps({"index": 1, "answer": "x" * 250}) + "\n"
    output.write_text(line * 1_000_000)
    safe = FileCheckpoint(1_000_000, output.stat().st_size)
    began = time.perf_counter()
    saved = RowFile(output, tmp_path / "torn", safe)
    assert saved.rows == 1_000_000
    assert time.perf_counter() - began < 1
    saved.close()


# --- whose output it is


def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    made(output, ITEMS, rows=3, settings={"seed": 1, "prompts": ["a"]}.items())
    before = output.read_bytes()
    with pytest.raises(OutputExists, match="seed: 1 -> 2") as refused:
        made(output, ITEMS, settings={"seed": 2, "prompts": ["a"]}.items())
    assert "another -o" in refused.value.hint
    assert "--overwrite" in refused.value.hint
    assert output.read_bytes() == before


def test_an_output_that_no_run_made_is_not_added_to(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    output.write_text('{"index": 0}\n')
    with pytest.raises(OutputExists, match="cannot be resumed"):
        made(output, ITEMS)
    assert sorted(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("place", [0, 3, 11])
def test_an_input_that_changed_under_its_rows_is_refused(tmp_path: Path, place: int) -> None:
    output = tmp_path / "rows.jsonl"
    made(output, ITEMS, rows=22)
    before = output.read_bytes()
    other = [*ITEMS[:place], item(99, ITEMS[place].prompts), *ITEMS[place + 1 :]]
    with pytest.raises(OutputExists, match="the input is not the one"):
        made(output, other)
    assert output.read_bytes() == before


@pytest.mark.parametrize("end", ["at once", "amid the rows that were there"])
def test_a_run_that_ends_before_it_has_compared_all_leaves_what_is_known(
    tmp_path: Path, end: str
) -> None:
    output = tmp_path / "rows.jsonl"
    made(output, ITEMS, rows=20)
    made(output, ITEMS[:3])  # as with a limit: nothing is new
    with RunState(output) as state, open_jsonl(state) as sink:
        state.check_settings({"seed": 0})
        for place in range(0 if end == "at once" else 5):
            index, prompt = key_of(ITEMS)[place]
            assert not sink.is_missing(place, ITEMS[index], prompt)
    made(output, ITEMS)
    assert places(output) == key_of(ITEMS)


def test_an_input_that_grew_at_its_end_is_gone_on_with(tmp_path: Path) -> None:
    output, more = tmp_path / "rows.jsonl", [*ITEMS, *(item(k) for k in range(17, 30))]
    made(output, ITEMS)
    asked = made(output, more)
    assert min(asked) == len(key_of(ITEMS))
    assert places(output) == key_of(more)


def test_a_second_run_is_refused_and_names_the_first(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    with (
        RunState(output),
        pytest.raises(OutputInUse, match=f"process {os.getpid()}"),
        RunState(output),
    ):
        pytest.fail("two runs at once")
    assert not list(tmp_path.iterdir())


def test_of_many_that_start_at_once_one_wins(tmp_path: Path) -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from pgcli.errors import OutputInUse
from pgcli.state.lock import output_lock
folder, go = Path(sys.argv[1]), Path(sys.argv[2])
for turn in range(200):
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
    for turn in range(200):
        (go / str(turn)).touch()
        wait_until(lambda turn=turn: len(list(go.glob(f"{turn}-?"))) == 2)  # type: ignore[misc]
        (go / f"{turn}-end").touch()
        wait_until(lambda turn=turn: len(list(go.glob(f"{turn}-?"))) == 3)  # type: ignore[misc]
    won = [int(line) for one in runs for line in one.communicate()[0].splitlines()]
    assert sorted(won) == list(range(200))


def wait_until(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- errors asked again


def test_only_error_rows_are_asked_again_and_take_their_old_places(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    made(output, ITEMS, broken={2, 5, 16})
    old = rows_in(output)
    asked = made(output, ITEMS, broken={5}, retry=True)
    new = rows_in(output)
    assert [row["error"] for row in new if row["index"] in (2, 16)] == [None] * 5
    assert {key_of(ITEMS)[place][0] for place in asked} == {2, 16}
    assert [row for row in new if row["index"] not in (2, 16)] == [
        row for row in old if row["index"] not in (2, 16)
    ]
    assert places(output) == key_of(ITEMS)


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_the_old_output_stays_whole_till_the_new_one_is(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    output = tmp_path_factory.mktemp("retried") / "rows.jsonl"
    made(output, ITEMS, broken={0, 7, 8})
    old = output.read_bytes()
    for _ in range(3):
        made(output, ITEMS, rows=data.draw(st.integers(0, 9)), retry=True, seed=1)
        assert output.read_bytes() == old
    made(output, ITEMS, retry=True)
    assert output.read_bytes() == whole


def test_a_retry_that_was_cut_short_says_nothing_of_the_old_output(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    made(output, ITEMS, broken={0, 7, 16})
    made(output, ITEMS, rows=9, retry=True)
    with RunState(output) as state:
        state.check_settings({"seed": 0})
        sink = open_jsonl(state)
        assert sink.rows == len(key_of(ITEMS))
        assert sink.errors.total() == sum(key[0] in (0, 7, 16) for key in key_of(ITEMS))
    made(output, ITEMS, retry=True)
    with RunState(output) as state:
        state.check_settings({"seed": 0})
        assert not open_jsonl(state).errors


def test_a_shorter_input_takes_no_rows_away(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    made(output, ITEMS, broken={1})
    old = output.read_bytes()
    with pytest.raises(OutputExists):
        made(output, ITEMS[:5], retry=True)
    assert output.read_bytes() == old


# --- what fails in the system


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
    """The system's calls, of which the `number`-th fails."""

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
    ("problem", "retry"), [(errno.ENOSPC, False), (errno.EINTR, False), (errno.EIO, True)]
)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows"])
def test_whatever_call_fails_the_rows_saved_stay_and_the_rest_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: int, retry: bool
) -> None:
    monkeypatch.setattr(resumable, "SECONDS_BETWEEN_SYNCS", 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    chunks_of(3, monkeypatch)
    few, broken = ITEMS[:4], {1, 3} if retry else set()
    made(tmp_path / "whole" / name, few)
    whole = row_texts(tmp_path / "whole" / name)
    made(tmp_path / "before" / name, few, rows=None if retry else 0, broken=broken)
    for number in range(1, 1000):
        output, failing = tmp_path / str(number) / name, Failing(number, problem)
        if retry:
            shutil.copytree(tmp_path / "before", output.parent)
        else:
            output.parent.mkdir()
        before = row_texts(output)
        with monkeypatch.context() as patch:
            failing.within(patch)
            with suppress(OutputFailed):
                made(output, few, retry=retry)
                assert not failing.has_failed or row_texts(output) == whole
        if not failing.has_failed:
            assert number > 30
            return
        kept = row_texts(output)
        assert all(row in whole or row in before for row in kept)
        assert kept == whole[: len(kept)] if not retry else len(kept) == len(whole)
        made(output, few, retry=retry)
        assert row_texts(output) == whole


def test_a_signal_amid_the_closing_of_any_file_costs_nothing(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux has closed it then; of all calls this is the one that Python does not begin anew."""
    real, broken_off = os.close, []

    def close(descriptor: int) -> None:
        real(descriptor)
        broken_off.append(descriptor)
        raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))

    output = tmp_path / "rows.jsonl"
    monkeypatch.setattr("pgcli.state.write_errors.os.close", close)
    made(output, ITEMS)
    assert len(broken_off) > 2
    monkeypatch.undo()
    assert output.read_bytes() == whole


def test_a_file_that_vanishes_under_the_run_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable, "SECONDS_BETWEEN_SYNCS", 0.0)
    output = tmp_path / "rows.jsonl"
    with RunState(output) as state:
        state.check_settings({})
        sink = open_jsonl(state)
        rows = answers([item(0), item(1)], look, in_order, refuse, resume_log=sink)
        sink.save(next(rows))
        output.unlink()
        with pytest.raises(OutputFailed, match="removed or replaced"):
            sink.save(next(rows))


def in_order(stream: Any) -> Iterator[tuple[int, Answer]]:
    for first, picture in stream:
        for number, prompt in enumerate(picture.item.prompts):
            yield first + number, answer(picture, prompt)
