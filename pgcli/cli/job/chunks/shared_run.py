"""`--join`: a run that takes the chunks of an output that no other process computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import monotonic, perf_counter, sleep

from pgcli.cli.job.chunks.chunk_worker import ChunkReport, ChunkWorker
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.oom_notice import OomNotice
from pgcli.cli.job.output import CONFIDENCE, RunOutput
from pgcli.cli.job.run_task import RunEngine
from pgcli.cli.job.shutdown import GracefulShutdown
from pgcli.cli.job.summary import interrupted_notice
from pgcli.cli.ui.console import Screen
from pgcli.pipeline import Tally
from pgcli.sinks.chunk_store import CompleteChunk
from pgcli.sinks.chunk_writer import ChunkWriter
from pgcli.sinks.parquet_folder import ParquetFolder
from pgcli.sinks.resumable import ResumableSink
from pgcli.state.claims import Claims
from pgcli.state.row_input import RowInput
from pgcli.state.run_state import RunState
from pgcli.state.stored_claims import StoredClaims
from pgcli.state.stored_run import StoredRunState

POLL_SECONDS = 2.0  # between two looks for chunks that other processes leave
SAVE_SECONDS = 1.0  # between two records of how far the run has come


class SharedOutput:
    """The chunks of an output that several processes write, as one of them sees them.

    `errors` counts the error rows of all chunks that are there. `total` is the number of rows, of
    a shard those of its chunks.
    """

    def __init__(self, input: RunInput, output: RunOutput):
        assert input.chunk_rows is not None
        assert input.rows_of_all_shards is not None
        assert input.rows is not None
        assert output.state is not None
        assert isinstance(output.sink, ResumableSink)
        assert isinstance(output.sink.store, ParquetFolder)
        self.input, self.output, self.state = input, output, output.state
        self.store, self._size = output.sink.store, input.chunk_rows
        self._whole, self.total = input.rows_of_all_shards, input.rows
        output.sink.close()
        self.store.remove_lines()
        self.rows, self.errors = 0, Counter[str]()
        self._saves_at = 0.0
        numbers = filter(self.store.owns, range(-(-self._whole // self._size)))
        left = [
            number
            for number in numbers
            if number not in self.store.chunks or not self.is_stored(number)
        ]
        self.claims = make_claims(self.state, left, self.is_stored)
        owned = {number for number in self.store.chunks if self.store.owns(number)}
        self._complete = sorted(owned - set(left))
        #: Chunks that are there with too few rows, as with a smaller limit.
        self.replaced = {
            number: self.store.chunks[number] for number in left if number in self.store.chunks
        }

    def chunk(self, number: int) -> range:
        """The rows of a chunk."""
        return range(number * self._size, min((number + 1) * self._size, self._whole))

    def compare(self) -> None:
        """Compare the complete chunks with the input, as the first process of a resumed run.

        Raises OutputExists where they were made from another input.
        """
        if not self.claims.is_alone:
            return
        for number in self._complete:
            complete = self.store.compare(number)
            with closing(complete.records):
                self._compare_chunk(self.chunk(number), complete)

    def _compare_chunk(self, rows: range, complete: CompleteChunk) -> None:
        is_verified = self.input.options.running.verify_input
        statuses = frozenset() if is_verified else self.input.source.table_statuses

        def is_unchanged(row_index: int) -> bool:
            if not self.store.keeps_inputs:
                return True  # there is nothing that an image could be compared with
            record = complete.records.read(row_index - rows.start) if row_index in rows else None
            return record is not None and record.stamp.status in statuses

        for item in self.input.items_of([rows] if rows else [], is_unchanged):
            for row_index, prompt in enumerate(item.prompts, start=item.row or 0):
                if row_index in rows:
                    row_input = RowInput.of(item, prompt)
                    complete.check.is_new(row_index - rows.start, row_input, item, prompt)

    def is_stored(self, number: int) -> bool:
        """Whether a chunk is there with all of its rows; if so, it is counted."""
        chunk = self.store.stored(number)
        if chunk is None or chunk.rows < len(self.chunk(number)):
            return False
        self.rows += chunk.rows
        self.errors.update(chunk.errors)
        return True

    def count(self, report: ChunkReport) -> None:
        """Count a chunk that this process stored."""
        self.claims.done(report.number)
        self.rows += report.tally.rows
        self.errors.update(report.tally.errors)

    def finish(self) -> None:
        """Remove what killed processes left, and write how far the output has come."""
        self.claims.remove_killed()
        self.save_progress(is_final=True)

    def save_progress(self, *, is_final: bool = False) -> None:
        """Write how far the whole output has come, every SAVE_SECONDS and at the end."""
        progress = self.state.progress
        progress.rows, progress.errors = self.rows, dict(self.errors)
        progress.total, progress.whole = self.total, self._whole
        if is_final or monotonic() >= self._saves_at:
            self._saves_at = monotonic() + SAVE_SECONDS
            self.state.save_progress()


def make_claims(
    state: RunState, numbers: Sequence[int], is_stored: Callable[[int], bool]
) -> Claims:
    """The claims of these chunks."""
    if isinstance(state, StoredRunState):
        return StoredClaims(state.owners, state.part, numbers, is_stored)
    return Claims(state.folder, state.part, numbers, is_stored)


Reports = Callable[[SharedOutput, GracefulShutdown], Generator[ChunkReport, None, None]]


def run_shared(
    input: RunInput, output: RunOutput, screen: Screen, tally: Tally, reports: Reports
) -> None:
    """Have chunks computed until all are there; count them, and stop on signals and on errors.

    The errors of the output are afterwards those of all of its rows.
    """
    say, task = screen.info, input.plan.question.task
    shared = SharedOutput(input, output)
    shared.compare()
    budget = input.options.running.error_budget
    progress = screen.progress(task, shared.total, initial=shared.rows)
    shutdown = GracefulShutdown(
        partial(say, "leaving the chunks in progress; press again to quit at once"),
        lambda: say(progress.line()),
        pipes=False,
    )
    tally.rows_before = shared.rows
    shared.state.start(shared.rows)
    shared.state.update_record()
    began = perf_counter()
    try:
        with shutdown, progress, closing(reports(shared, shutdown)) as found:
            for report in found:
                shared.count(report)
                tally.add(report.tally)
                tally.seconds = perf_counter() - began
                progress.update(shared.rows, errors=shared.errors.total(), seconds=tally.seconds)
                shared.save_progress()
                budget.check_chunk(report.error, report.runs, tally)
            shutdown.raise_if_requested()
            budget.check_share(tally)
            shared.finish()
    except BaseException:
        say(interrupted_notice(input.options.output.output, shared.rows, shared.state))
        raise
    output.errors = shared.errors


def local_reports(
    engine: RunEngine, screen: Screen, shared: SharedOutput, shutdown: GracefulShutdown
) -> Generator[ChunkReport, None, None]:
    """The chunks that this process computes."""
    input = shared.input
    schema = replace(input.row_schema, confidence=CONFIDENCE in shared.output.settings)
    writer = ChunkWriter(shared.store, schema)
    notice = OomNotice(engine, screen.info, shared.state)
    with ChunkWorker(input, engine, writer, shutdown.should_stop) as worker:
        for number, ahead in assignments(shared, shutdown):
            shared.state.begin()
            report = worker.run(number, ahead)
            if report is None:
                return
            notice.check()
            yield report


def assignments(
    shared: SharedOutput, shutdown: GracefulShutdown
) -> Iterator[tuple[int, int | None]]:
    """The chunks that this process is to compute, each with the one after it if that is known.

    Where other processes have all that are left, waits until these are stored or left.
    """
    claims = shared.claims
    ahead: list[int] = []
    waits_until = 0.0
    while not shutdown.should_stop():
        if not ahead and monotonic() < waits_until:
            sleep(0.05)
            continue
        found = ahead or claims.claim()
        if not found and not claims.left:
            return
        if not found:
            waits_until = monotonic() + POLL_SECONDS
            continue
        ahead = claims.claim(spare=1)
        yield found[0], ahead[0] if ahead else None
