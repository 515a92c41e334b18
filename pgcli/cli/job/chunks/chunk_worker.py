"""Answers whole chunks of a run's rows, and stores each once all of its rows are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, Self

from pgcli.cli.job.input import RunInput
from pgcli.cli.job.run_task import RunEngine
from pgcli.cli.job.stages import decode_stage
from pgcli.pipeline import ErrorRuns, Tally
from pgcli.pipeline.tally import count_and_time_waits
from pgcli.records import Answer, DecodedImage, Fault, Item, error_answer
from pgcli.sinks.chunk_writer import ChunkRow, ChunkWriter
from pgcli.state.row_input import RowInput

CRASHED = Fault("worker_crashed", "The process of the model died of the image, twice.")


@dataclass
class ChunkReport:
    """What is counted of a stored chunk. `error` is its first error row, and `runs` the consecutive
    ones. `limits` are the batch sizes that a remote engine reduced on OOM."""

    number: int
    tally: Tally = field(default_factory=Tally)
    error: Answer | None = None
    runs: ErrorRuns = field(default_factory=ErrorRuns)
    limits: Mapping[str, Any] = field(default_factory=dict)

    def count(self, rows: Sequence[ChunkRow]) -> Self:
        """Add the rows, in their order."""
        for answer, _ in rows:
            self.tally.count(answer)
            self.runs.add(is_error=answer.error is not None)
            if answer.error is not None and self.error is None:
                self.error = answer
        return self


class ChunkWorker:
    """An engine with its decoding processes, which answer any part of a run's rows.

    `prepare` has the images of a part decoded ahead; parts are answered in that order. Leaving the
    `with` block ends the decoding processes.
    """

    def __init__(
        self,
        input: RunInput,
        engine: RunEngine,
        writer: ChunkWriter,
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self._input, self._engine, self._writer = input, engine, writer
        self._should_stop = should_stop
        self._refuse = partial(error_answer, task=input.plan.question.task, model=engine.label)
        self._parts: SimpleQueue[range | None] = SimpleQueue()
        self._prepared: deque[range] = deque()
        decode = decode_stage(
            input, engine.spec, engine.device, should_stop, resumes=False, stamps=True
        )
        self._decoded = iter(decode(self._items()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.put(None)
        if isinstance(self._decoded, Generator):
            self._decoded.close()

    def chunk(self, number: int) -> range:
        """The rows of a chunk."""
        rows, size = self._input.rows_of_all_shards, self._input.chunk_rows
        assert rows is not None
        assert size is not None
        return range(number * size, min((number + 1) * size, rows))

    def run(self, number: int, ahead: int | None = None) -> ChunkReport | None:
        """Answer and store a chunk, and have the images of the one `ahead` decoded meanwhile.

        None if the run is to stop. Raises OutputFailed, and what the engine raises.
        """
        rows = self.chunk(number)
        self.prepare(rows)
        if ahead is not None:
            self.prepare(self.chunk(ahead))
        report = ChunkReport(number)
        found = self.answer(rows, report.tally)
        return None if found is None else self.store(report, found)

    def store(self, report: ChunkReport, rows: Sequence[ChunkRow]) -> ChunkReport:
        """Store the rows of a chunk."""
        self._writer.write(report.number, rows)
        return report.count(rows)

    def prepare(self, rows: range) -> None:
        """Have the images of these rows decoded, after those of the parts before."""
        if rows not in self._prepared:
            self._prepared.append(rows)
            self._parts.put(rows)

    def answer(self, rows: range, tally: Tally | None = None) -> list[ChunkRow] | None:
        """The rows, which are prepared now if they were not; None if the run is to stop."""
        self.prepare(rows)
        assert self._prepared[0] == rows
        found: dict[int, Answer] = {}
        inputs: dict[int, RowInput] = {}
        per_image = self._input.plan.prompts_per_image
        images = islice(self._decoded, (rows.stop - 1) // per_image - rows.start // per_image + 1)

        def valid() -> Iterator[tuple[int, DecodedImage]]:
            for image in count_and_time_waits(images, tally or Tally()):
                first = image.item.row
                assert first is not None
                for row_index, prompt in enumerate(image.item.prompts, start=first):
                    inputs[row_index] = stamped_input(image, prompt)
                    if image.fault is not None:
                        found[row_index] = self._refuse(image, prompt)
                if image.fault is None:
                    yield first, image

        for row_index, answer in self._input.plan.task.stage(self._engine, self._should_stop)(
            valid()
        ):
            found[row_index] = answer
        if self._should_stop():
            return None
        self._prepared.popleft()
        assert found.keys() == set(rows), "an image was never answered"
        return [(found[row_index], inputs[row_index]) for row_index in rows]

    def refuse(self, rows: range) -> list[ChunkRow]:
        """Error rows of images that ended the process that answered them."""
        return [
            (self._refuse(image, prompt), RowInput.of(item, prompt))
            for item in self._items_of(rows)
            for image in [DecodedImage(item, None, None, None, 0.0, CRASHED)]
            for prompt in item.prompts
        ]

    def _items(self) -> Iterator[Item]:
        """The items of all parts, as these are prepared."""
        while (rows := self._parts.get()) is not None:
            yield from self._items_of(rows)

    def _items_of(self, rows: range) -> Iterator[Item]:
        """The items of the rows, each with its prompts of these rows only."""
        for item in self._input.items_of([rows]):
            first = item.row or 0
            start = max(first, rows.start)
            if start == first and len(item.prompts) <= rows.stop - first:
                yield item
            else:
                prompts = item.prompts[start - first : rows.stop - first]
                yield replace(item, row=start, prompts=prompts)


def stamped_input(image: DecodedImage, prompt: str) -> RowInput:
    """The input of a row, with the stamp of its image."""
    status = image.item.table_status
    stamp = replace(image.stamp, status=status) if status else image.stamp
    return RowInput.of(image.item, prompt, stamp)
