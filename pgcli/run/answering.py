"""Answers the rows of a run in this process, in engine processes, or on Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING

from pgcli.inputs.file_table import Stamp
from pgcli.output.lines import json_line, parse_row
from pgcli.records import Answer, DecodedImage, Fault, Item, error_answer
from pgcli.run.input_rows import Numbered, RowImages, RunRows, range_rows, row_schema
from pgcli.run.model import RunModel, answer_function
from pgcli.run.progress import EngineInfo, RunProgress
from pgcli.run.run_output import RunOutput, SaveLine
from pgcli.run.state.lines import errors_in
from pgcli.run.workers.engine import EngineTask
from pgcli.run.workers.engines import EngineProcesses, RowsLost, Workers
from pgcli.run.workers.work import RowsAnswered, Work, WorkQueue
from pgcli.stores import Store

if TYPE_CHECKING:
    from pgcli.results.hooks import RowHook
    from pgcli.run.request import RunRequest

CRASHED = Fault("worker_crashed", "The model's process crashed on this image twice.")
#: Notes the stamp of the image with this index, before its rows are saved.
NoteStamp = Callable[[int, "Stamp | None"], None]


def ignore_stamp(index: int, stamp: Stamp | None) -> None:
    """Note nothing: the rows cannot be resumed."""


class Answering:
    """Answers rows with the model of a run and saves them; hooks get all rows in order.

    `output` is None if the run cannot be resumed.
    """

    def __init__(
        self,
        request: RunRequest,
        progress: RunProgress,
        model: RunModel,
        rows: RunRows,
        hooks: Sequence[RowHook],
        output: RunOutput | None = None,
    ):
        self.request, self.progress, self.model = request, progress, model
        self.rows, self.hooks, self.output = rows, hooks, output
        #: The columns of saved lines.
        self.schema = row_schema(request, rows.inventory.kept, exact=False)
        if output is not None:
            self.schema = output.line_schema

    def pass_to_hooks(
        self, rows: Iterable[tuple[int, Item, Answer]], *, is_saved: bool = False
    ) -> None:
        """Pass rows to the hooks; `is_saved` if an earlier run saved them."""
        for _, item, row in rows:
            for hook in self.hooks:
                hook.on_row(row, item, is_saved=is_saved)

    # in this process

    def here(
        self,
        items: Numbered,
        sink: AbstractContextManager[SaveLine],
        *,
        images: int | None,
        note_stamp: NoteStamp = ignore_stamp,
    ) -> None:
        """Answer items in this process, in one continuous batch, and save their rows in the sink.

        If the number of `images` is None, worker processes always decode them. The sink is opened
        once the model is loaded.
        """
        with (
            self.answers(items, images, note_stamp) as rows,
            self.progress.answering(),
            sink as save,
        ):
            for number, item, row in rows:
                save(number, json_line(row, self.schema).encode())
                self.progress.tally.count(row)
                self.pass_to_hooks([(number, item, row)])
                self.progress.update(row)

    @contextmanager
    def answers(
        self, items: Numbered, images: int | None, note_stamp: NoteStamp = ignore_stamp
    ) -> Iterator[Iterator[tuple[int, Item, Answer]]]:
        """Start to decode items, load the model, and yield the rows as they are answered."""

        def on_image(first: int, image: DecodedImage) -> None:
            note_stamp(image.item.index, image.stamp)

        should_stop = self.progress.should_stop
        with RowImages(
            self.request,
            items,
            self.model.checkpoint.folder,
            self.request.model.device,
            should_stop,
            total=images,
            pauses=self.rows.inventory.total is None,
            keeps_items=bool(self.hooks),
        ) as decoded:
            engine = self.model.load(None if self.output is None else self.output.record)
            answers = answer_function(self.request, engine, should_stop)
            yield answers(decoded.take(self.progress.tally, on_image))

    # in other processes

    def has_workers(self, ranges: Sequence[range]) -> bool:
        """Whether engine processes or Ray answer these rows."""
        model = self.request.model
        if not ranges or not self.rows.is_addressable:
            return False
        slots = self.model.slots(sum(map(len, ranges)))
        return bool(model.ray or model.engines or len(slots) > 1)

    def elsewhere(
        self,
        ranges: Sequence[range],
        sink: AbstractContextManager[SaveLine],
        state: Store,
        *,
        note_stamp: NoteStamp = ignore_stamp,
    ) -> None:
        """Answer rows in other processes, and save them in input order.

        Rows that are answered early wait in memory; if the run stops, they are not saved. The
        folder `state` has the recorded input.
        """
        workers = self._workers(ranges, state)
        with (
            self.progress.answering(loads=self.model.checkpoint.name),
            sink as save,
            closing(workers.messages()) as messages,
        ):
            rows = InOrder(ranges, self._saving(save, ranges))
            try:
                for message in messages:
                    if isinstance(message, RowsAnswered):
                        for index, stamp in message.stamps.items():
                            note_stamp(index, stamp)
                        rows.add(message.first, message.lines)
                        self.progress.show_limits(message.limits)
                        self.progress.add(message.counts, message.errors)
                    elif isinstance(message, EngineInfo) and self.model.info is None:
                        self._note_engine(message)
                    elif isinstance(message, RowsLost):
                        for number, row in self._error_rows(message.rows):
                            rows.add(number, [json_line(row, self.schema).encode()])
                            self.progress.tally.count(row)
                            self.progress.update(row)
                    workers.queue.early_bytes = rows.early_bytes
            finally:
                early = rows.early()
                self.progress.tally.rows -= len(early)
                self.progress.tally.errors -= errors_in(early)

    def _saving(self, save: SaveLine, ranges: Sequence[range]) -> SaveLine:
        """What saves rows of ranges, which come in order, and passes them to the hooks."""
        if not self.hooks:
            return save
        items = (item for rows in ranges for item in self.rows.item_of_each(rows))

        def save_and_pass_on(number: int, line: bytes) -> None:
            save(number, line)
            row = self.schema.answer(parse_row(line) or {})
            self.pass_to_hooks([(number, next(items), row)])

        return save_and_pass_on

    def _workers(self, ranges: Sequence[range], state: Store) -> Workers:
        """The engines for ranges of rows of the input recorded in a state folder."""
        request, total = self.request, sum(map(len, ranges))
        if request.model.ray is not None:
            from pgcli.run.workers.ray_engines import RayEngines

            assert self.output is not None, "--ray is for folders"
            return RayEngines(self.output, ranges, self.progress)
        slots = self.model.slots(total)
        self.progress.summary.engines = len(slots)
        queue = WorkQueue(
            map(Work, ranges),
            workers=len(slots),
            size=range_rows(total),
            per_item=self.rows.per_item or 1,
            is_fixed=request.model.dtype == "float32" or slots[0].device == "cpu",
        )
        task = EngineTask(request, slots[0], state.url, self.schema)
        return EngineProcesses(queue, slots, task, self.progress)

    def _note_engine(self, info: EngineInfo) -> None:
        """Note the first loaded engine. Raises OutputExists, as `RunModel.note` does."""
        self.model.note(info, None if self.output is None else self.output.record)
        self.progress.begin_rows()
        if self.output is not None:
            self.output.note_command(info)

    def _error_rows(self, rows: range) -> Iterator[tuple[int, Answer]]:
        """The failed rows of an image that crashed too many engines."""
        label = self.model.info.label if self.model.info else ""
        for first, item in self.rows.numbered(rows):
            image = DecodedImage(item, None, None, None, 0.0, CRASHED)
            for number, prompt in enumerate(item.prompts, first):
                task = self.request.question.task
                yield number, error_answer(image, prompt, task=task, model=label)


class InOrder:
    """Passes the rows of ranges on in order; rows that come early wait in memory."""

    def __init__(self, ranges: Iterable[range], save: SaveLine):
        self._ranges, self._save = iter(ranges), save
        self._range = next(self._ranges, range(0))
        self._next = self._range.start
        self._early: dict[int, Sequence[bytes]] = {}  # by their first rows
        self.early_bytes = 0

    def add(self, first: int, lines: Sequence[bytes]) -> None:
        """Pass on consecutive rows of a range and the rows that waited for them, or keep them."""
        self._early[first] = lines
        self.early_bytes += sum(map(len, lines))
        while (ready := self._early.pop(self._next, None)) is not None:
            for number, line in enumerate(ready, self._next):
                self.early_bytes -= len(line)
                self._save(number, line)
            self._next += len(ready)
            if self._next == self._range.stop:
                self._range = next(self._ranges, range(0))
                self._next = self._range.start

    def early(self) -> list[bytes]:
        """The rows that still wait."""
        return [line for lines in self._early.values() for line in lines]
