"""Rows arrive in any order and are written in input order; waiting rows outlive a command."""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.errors import OutputFailed
from pgcli.output.lines import json_line
from pgcli.pipeline.output import RunOutput
from pgcli.pipeline.state import lines_form
from pgcli.pipeline.state.forms import open_form
from pgcli.pipeline.state.in_order import InOrder, in_order_of
from pgcli.pipeline.state.lines import ALL_ROWS, Coverage, RowFile, Segment, error_of
from pgcli.pipeline.state.lines_form import LinesForm
from pgcli.pipeline.state.open_rows import MAX_OPEN_FILES, OpenRows
from pgcli.pipeline.state.parts import Parts
from pgcli.pipeline.state.parts_form import PartsForm
from pgcli.pipeline.state.record import RunRecord
from pgcli.rows import RowSchema
from pgcli.stores import Entry, LocalStore
from tests.support.answers import answer, refused
from tests.support.run_kinds import KINDS, fresh, whole
from tests.support.stub_runs import finish, rows_of

SCHEMA = RowSchema()
DESCRIPTORS = Path("/dev/fd")


def line(number: int) -> bytes:
    """Every fourth row is an error row."""
    row = refused(number) if number % 4 == 3 else answer(number)
    return json_line(row, SCHEMA).encode()


def number_of(line: bytes) -> int:
    return json.loads(line)["index"]


def early_rows(folder: Path, **options: int) -> OpenRows:
    return OpenRows(LocalStore(folder / "state", create=True), **options)


def leave(folder: Path, *rows: range) -> None:
    """Files that an earlier command left, which may have the same rows."""
    for numbers in rows:
        early = early_rows(folder)
        for number in numbers:
            early.append(number, line(number))
        early.close()


def open_files(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in (folder / "state/open").glob("*"))


@given(rows=st.permutations(range(14)), ranges=st.sets(st.integers(0, 14), min_size=2))
def test_rows_of_ranges_are_delivered_in_order(rows, ranges):
    ends = sorted(ranges)[: len(ranges) // 2 * 2]
    chosen = [range(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True)]
    wanted = [row for numbers in chosen for row in numbers]
    delivered: list[int] = []

    def deliver(first: int, rows: Sequence[bytes]) -> None:
        assert [*range(first, first + len(rows))] == [*map(number_of, rows)]
        delivered.extend(map(number_of, rows))

    seen = set[int]()
    with in_order_of(chosen, deliver) as order:
        for number in filter(wanted.__contains__, rows):
            order.save(number, line(number))
            seen.add(number)
            assert delivered == [*takewhile(seen.__contains__, wanted)]


def test_row_is_appended_to_the_file_that_expects_it(tmp_path):
    early = early_rows(tmp_path, file_rows=10)
    for number in (5, 20, 6, 21, 7, 8, 9, 10):
        early.append(number, line(number))
    early.close()
    names = [f"open/{first:012}.jsonl" for first in (5, 10, 20)]
    assert sorted(early.names()) == names, "a file ends before a multiple of its rows"
    errors = [{refused().error: 1}, {}, {}]
    segments = sorted(early_rows(tmp_path).segments(), key=lambda segment: segment.first)
    assert segments == [
        Segment(first, rows, error, name)
        for first, rows, error, name in zip((5, 10, 20), (5, 1, 2), errors, names, strict=True)
    ]


def test_file_descriptors_of_open_rows_are_limited(tmp_path):
    before = len([*DESCRIPTORS.iterdir()])
    early = early_rows(tmp_path)
    for number in range(0, 10 * MAX_OPEN_FILES, 5):
        early.append(number, line(number))
        assert len([*DESCRIPTORS.iterdir()]) <= before + MAX_OPEN_FILES + 1
    early.append(1, line(1))  # its file was closed
    early.close()
    assert len(early_rows(tmp_path).segments()) == 2 * MAX_OPEN_FILES + 1


def test_overlapping_files_of_earlier_commands_are_delivered_once(tmp_path):
    leave(tmp_path, range(2), range(3, 8), range(5, 11), range(6, 8), range(13, 15), range(20, 22))
    early, delivered = early_rows(tmp_path), []
    saved = Coverage([Segment(11, 1), Segment(15, 4)])

    def deliver(first: int, rows: Sequence[bytes]) -> None:
        delivered.extend(enumerate(map(number_of, rows), first))

    order = InOrder(early, deliver, first=2, saved=saved)
    order.begin(early.segments())
    assert order.delivered, "the files of saved rows"
    for number in (12, 2, 19):
        order.save(number, line(number))
    assert delivered == [(n, n) for n in (*range(2, 11), 12, 13, 14, 19, 20, 21)]
    assert order.next == 22
    order.remove_delivered()
    assert open_files(tmp_path) == []


def test_delivered_files_are_removed_after_a_flush(tmp_path, monkeypatch):
    leave(tmp_path, range(1, 4))
    monkeypatch.setattr(lines_form, "SYNC_SECONDS", ALL_ROWS)
    early, output, happened = early_rows(tmp_path), tmp_path / "rows.jsonl", list[str]()
    sync, delete = RowFile.sync, LocalStore.delete

    def noted_sync(file: RowFile) -> None:
        happened.append(f"sync {Path(file.name).name}")
        sync(file)

    def noted_delete(store: LocalStore, names: Iterator[str]) -> None:
        for name in names:
            happened.append(f"remove {Path(name).name}")
            delete(store, [name])

    monkeypatch.setattr(RowFile, "sync", noted_sync)
    monkeypatch.setattr(LocalStore, "delete", noted_delete)
    form = LinesForm(LocalStore(tmp_path), output, early)
    form.begin(early.segments())
    form.save(0, line(0))
    assert happened == ["sync rows.jsonl", "remove 000000000001.jsonl"]
    form.close()
    assert [*map(number_of, output.read_bytes().splitlines())] == [0, 1, 2, 3]


def test_new_file_replaces_one_without_a_complete_row(tmp_path):
    """A kill leaves such a file between its creation and its first row."""
    output, opened = tmp_path / "rows.jsonl", tmp_path / "state/open"
    opened.mkdir(parents=True)
    (opened / f"{2:012}.jsonl").write_bytes(line(2)[:9])
    early = early_rows(tmp_path)
    form = LinesForm(LocalStore(tmp_path), output, early)
    form.begin(early.segments())
    for number in (2, 0, 1):
        form.save(number, line(number))
    form.finish(3)
    assert [*map(number_of, output.read_bytes().splitlines())] == [0, 1, 2]


class MemoryStore:
    """As much of a store as open rows need."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def list(self, prefix: str) -> Iterator[Entry]:
        yield from (Entry(name, 0, 0.0) for name in self.files if name.startswith(prefix))

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def replace(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def delete(self, names: Iterator[str]) -> None:
        for name in names:
            del self.files[name]


def test_rows_for_a_store_are_buffered_until_uploaded():
    store = MemoryStore()
    early = OpenRows(store)
    for number in (0, 1, 5, 6, 9):
        early.append(number, line(number))
    early.remove(["open/000000000000.jsonl"])  # a file of the output has its rows
    assert (store.files, [*map(number_of, early.buffered_lines())]) == ({}, [5, 6, 9])
    assert [*early.lines(early.starting_at(5), 6, 7)] == [line(6)]
    early.put_buffered()
    assert early.buffered_lines() == []
    segments = sorted((s.first, s.rows) for s in OpenRows(store).segments())
    assert segments == [(5, 2), (9, 1)]
    OpenRows(store).remove([*store.files])
    assert store.files == {}


def parts(folder: Path) -> PartsForm:
    record = RunRecord("a" * 16, {}, {}, file_rows=8)
    early = early_rows(folder, file_rows=8)
    form = open_form(f"{folder}/rows/", lambda: record, early, schema=SCHEMA, create=True)
    assert isinstance(form, PartsForm)
    segments = [*form.segments(), *early.segments()]
    form.begin([segment for segment in segments if segment.name])
    return form


def files(folder: Path) -> dict[str, list[int]]:
    return {
        path.name: pq.read_table(path)["index"].to_pylist()
        for path in sorted((folder / "rows").iterdir())
    }


def test_files_are_written_once_all_their_rows_are_saved(tmp_path):
    leave(tmp_path, range(2, 6), range(4, 7))
    form, numbers = parts(tmp_path), [*range(8, 16), 0, 1, 7, *range(16, 19)]
    for number in numbers[:8]:
        form.save(number, line(number))
    assert (files(tmp_path), open_files(tmp_path)) == ({}, [2, 4, 8]), "before the next row"
    for number in numbers[8:]:
        form.save(number, line(number))
    rows = {f"part-{n:06}.parquet": [*range(8 * n, 8 * n + 8)] for n in range(2)}
    assert (files(tmp_path), open_files(tmp_path)) == (rows, [16])
    form.close()
    resumed = parts(tmp_path)
    assert [segment.errors.total() for segment in resumed.segments()] == [2, 2]
    resumed.finish(19)
    assert files(tmp_path) == rows | {"part-000002.parquet": [16, 17, 18]}
    assert open_files(tmp_path) == []


def test_failed_write_keeps_open_rows(tmp_path, monkeypatch):
    form = parts(tmp_path)
    for number in range(8):
        form.save(number, line(number))
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "_write", fail)
        for _ in range(2):
            with pytest.raises(OutputFailed):
                form.save(8, line(8))
        with pytest.raises(OutputFailed):
            form.close()
    assert (files(tmp_path), open_files(tmp_path)) == ({}, [0])
    again = parts(tmp_path)
    assert files(tmp_path) == {"part-000000.parquet": [*range(8)]}
    assert open_files(tmp_path) == []
    again.save(9, line(9))


def fail(*_: object, **__: object) -> None:
    raise OutputFailed("the disk is full")


def drop_a_row() -> None:
    """Have a run lose one of its rows."""
    save, dropped = RunOutput.save, random.Random(0).randrange(12)

    def save_others(output: RunOutput, number: int, line: bytes) -> None:
        if number != dropped:
            save(output, number, line)

    RunOutput.save = save_others


@pytest.mark.parametrize("kind", ["lines", "folder", "parquet of engines"])
def test_lost_row_ends_the_run_with_1(images, kind):
    """Whatever the mistake in the program: the command ends with 1, and the next one resumes."""
    output, options = KINDS[kind]
    rows, folder = whole(images, kind), fresh(images, "hole")
    code, said = finish(folder, output, before=drop_a_row, **options)
    assert (code, "were not saved" in said) == (1, True), said
    assert len(rows_of(folder, output)) < len(rows)
    assert finish(folder, output, **options)[0] == 3
    assert rows_of(folder, output) == rows


def check_stamps() -> None:
    """Have a run fail if the file of an answered image is not noted before its rows are saved."""
    save = RunOutput.save

    def check_and_save(output: RunOutput, number: int, line: bytes) -> None:
        stamps, index = output.stamps.read(), number_of(line)
        assert error_of(line) or (index < len(stamps) and stamps[index][0]), "no stamp"
        save(output, number, line)

    RunOutput.save = check_and_save


@pytest.mark.parametrize("kind", ["lines", "parquet of engines"])
def test_stamp_is_written_before_the_rows_of_an_image(images, kind):
    """A command that is killed between the two would resume with another file."""
    output, options = KINDS[kind]
    code, said = finish(fresh(images, "noted"), output, before=check_stamps, **options)
    assert code == 3, said
