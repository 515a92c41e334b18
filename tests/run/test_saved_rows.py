"""Rows are saved in input order, in logs and then in files of the output."""

import json
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.errors import OutputFailed
from pgcli.output.lines import json_line
from pgcli.rows import RowSchema
from pgcli.run.answering import InOrder
from pgcli.run.comparison import ImageStamps
from pgcli.run.run_output import RunOutput, count_rows, end_of
from pgcli.run.state.lines import Log, error_of, merge_ranges
from pgcli.run.state.record import RunRecord
from pgcli.run.state.saved import Parts, SavedRows, open_saved
from pgcli.stores import LocalStore
from tests.support.exporting import answer, refused
from tests.support.stub_runs import KINDS, finish, fresh, rows_of, whole

SCHEMA = RowSchema()
ERROR = refused().error


def line(number: int) -> bytes:
    """Every fourth row is an error row."""
    row = refused(number) if number % 4 == 3 else answer(number)
    return json_line(row, SCHEMA).encode()


def number_of(line: bytes) -> int:
    return json.loads(line)["index"]


@given(rows=st.permutations(range(14)), ranges=st.sets(st.integers(0, 14), min_size=2))
def test_rows_of_ranges_are_saved_in_order(rows, ranges):
    ends = sorted(ranges)[: len(ranges) // 2 * 2]
    chosen = [range(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True)]
    wanted = [row for numbers in chosen for row in numbers]
    saved, seen = list[int](), set[int]()
    order = InOrder(chosen, lambda number, row: saved.append(number_of(row)))
    for number in filter(wanted.__contains__, rows):
        order.add(number, [line(number)])
        seen.add(number)
        assert saved == [*takewhile(seen.__contains__, wanted)]
        early = seen - {*saved}
        assert {*map(number_of, order.early())} == early
        assert order.early_bytes == sum(len(line(number)) for number in early)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=6))
def test_merged_ranges_have_the_same_rows(pairs):
    ranges = [range(first, first + rows) for first, rows in sorted(pairs)]
    rows = sorted({row for numbers in ranges for row in numbers})
    joined = merge_ranges(ranges)
    assert [row for numbers in joined for row in numbers] == rows
    assert all(a.stop < b.start for a, b in pairwise(joined))
    for row in range(26):
        assert end_of(joined, row) == next(n for n in range(row, 99) if n not in rows)
        assert count_rows(joined, row, row + 4) == sum(row <= n < row + 4 for n in rows)


def saved_rows(folder: Path, output: str = "rows/") -> SavedRows:
    record = RunRecord("a" * 16, {}, {}, file_rows=8)
    state = LocalStore(folder / "state", create=True)
    rows = open_saved(f"{folder}/{output}", lambda: record, [state], schema=SCHEMA, create=True)
    rows.find()
    rows.begin()
    return rows


def save(rows: SavedRows, numbers: range) -> None:
    for number in numbers:
        rows.save(number, line(number))


def files(folder: Path) -> dict[str, list[int]]:
    return {
        path.name: pq.read_table(path)["index"].to_pylist()
        for path in sorted((folder / "rows").iterdir())
    }


def logs(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in (folder / "state/open").glob("*"))


def part(number: int) -> str:
    return f"part-{number:06}.parquet"


def test_file_is_written_before_the_row_after_its_last(tmp_path):
    rows = saved_rows(tmp_path)
    save(rows, range(8))
    assert (files(tmp_path), logs(tmp_path)) == ({}, [0])
    save(rows, range(8, 11))
    assert (files(tmp_path), logs(tmp_path)) == ({part(0): [*range(8)]}, [8])
    rows.close()
    again = saved_rows(tmp_path)
    assert (again.ranges(), [*again.error_rows()]) == ([range(11)], [(3, ERROR), (7, ERROR)])
    assert [number for number, _ in again.rows()] == [*range(11)]
    save(again, range(11, 13))
    again.finish(13)
    assert files(tmp_path) == {part(0): [*range(8)], part(1): [*range(8, 13)]}
    assert logs(tmp_path) == []


@pytest.mark.parametrize("output", ["rows/", "rows.parquet", "rows.jsonl"])
def test_completed_output_grows(tmp_path, output):
    """A larger --limit, or new images: a file with some of its rows gets the others."""
    for total in (3, 5, 5, 11):
        rows = saved_rows(tmp_path, output)
        start = sum(map(len, rows.ranges()))
        save(rows, range(start, total))
        rows.finish(total)
        assert logs(tmp_path) == []
    again = saved_rows(tmp_path, output)
    assert [row["index"] for _, row in again.rows()] == [*range(11)]
    assert [number for number, _ in again.error_rows()] == [3, 7]


def test_log_of_a_written_file_is_removed(tmp_path, monkeypatch):
    """A kill between the two leaves it."""
    rows = saved_rows(tmp_path)
    monkeypatch.setattr(Log, "remove", lambda log: log.close())
    save(rows, range(9))
    rows.close()
    assert logs(tmp_path) == [0, 8]
    monkeypatch.undo()
    again = saved_rows(tmp_path)
    assert (again.ranges(), logs(tmp_path)) == ([range(9)], [8])


def test_truncated_line_is_replaced_by_its_row(tmp_path):
    for output in ("rows/", "rows.jsonl"):
        rows = saved_rows(tmp_path, output)
        save(rows, range(3))
        rows.close()
        name = "rows.jsonl" if output == "rows.jsonl" else f"state/open/{0:012}.jsonl"
        with (tmp_path / name).open("ab") as file:
            file.write(line(3)[:9])
        again = saved_rows(tmp_path, output)
        save(again, range(3, 6))
        again.finish(6)
        assert [row["index"] for _, row in saved_rows(tmp_path, output).rows()] == [*range(6)]


def test_failed_write_keeps_the_log(tmp_path, monkeypatch):
    rows = saved_rows(tmp_path)
    save(rows, range(8))
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "_write", fail)
        for _ in range(2):
            with pytest.raises(OutputFailed):
                rows.save(8, line(8))
        with pytest.raises(OutputFailed):
            rows.close()
    assert (files(tmp_path), logs(tmp_path)) == ({}, [0])
    again = saved_rows(tmp_path)
    assert (files(tmp_path), logs(tmp_path)) == ({part(0): [*range(8)]}, [])
    again.save(8, line(8))


def fail(*_: object, **__: object) -> None:
    raise OutputFailed("the disk is full")


def drop(row: int) -> None:
    """Have a run lose one of its rows."""
    save = RunOutput.save

    def save_others(output: RunOutput, number: int, line: bytes) -> None:
        if number != row:
            save(output, number, line)

    RunOutput.save = save_others


@pytest.mark.parametrize("is_last", [False, True], ids=["middle", "last"])
@pytest.mark.parametrize("kind", ["lines", "folder", "parquet of engines"])
def test_lost_row_ends_the_run_with_1(images, kind, is_last):
    """Whatever the mistake in the program: the command ends with 1, and the next one resumes."""
    output, options = KINDS[kind]
    rows, folder = whole(images, kind), fresh(images, "hole")
    row = len(rows) - 1 if is_last else 7
    code, said = finish(folder, output, before=partial(drop, row), **options)
    assert (code, f"{row} {'were not saved' if is_last else 'is missing'}" in said) == (1, True), (
        said
    )
    assert len(rows_of(folder, output)) == row
    assert finish(folder, output, **options)[0] == 3
    assert rows_of(folder, output) == rows


def check_stamps() -> None:
    """Have a run fail if the file of an answered image is not noted before its rows are saved."""
    save = RunOutput.save

    def check_and_save(output: RunOutput, number: int, line: bytes) -> None:
        stamps, index = ImageStamps(output.state.owner.store).read(), number_of(line)
        assert error_of(line) or (index < len(stamps) and stamps[index][0]), "no stamp"
        save(output, number, line)

    RunOutput.save = check_and_save


@pytest.mark.parametrize("kind", ["lines", "parquet of engines"])
def test_stamp_is_written_before_the_rows_of_an_image(images, kind):
    """A command that is killed between the two would resume with another file."""
    output, options = KINDS[kind]
    code, said = finish(fresh(images, "noted"), output, before=check_stamps, **options)
    assert code == 3, said
