"""Answers the rows of a run in this process, in engine processes, or on Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING

from pgcli.inputs.stamps import Stamp
from pgcli.output.lines import json_line, parse_row
from pgcli.pipeline.model import RunModel
from pgcli.pipeline.output import RunOutput, SaveLine
from pgcli.pipeline.progress.run_progress import RunProgress
from pgcli.pipeline.rows import Numbered, RunRows, range_rows, row_schema
from pgcli.pipeline.state.in_order import in_order_of
from pgcli.pipeline.task import answer_function
from pgcli.pipeline.workers.engine import EngineTask
from pgcli.pipeline.workers.engines import EngineProcesses, RowsLost, Workers
from pgcli.pipeline.workers.row_images import RowImages
from pgcli.pipeline.workers.work import EngineInfo, RowsAnswered, Work, WorkQueue
from pgcli.records import Answer, DecodedImage, Fault, Item, error_answer
from pgcli.stores import Store

if TYPE_CHECKING:
    from pgcli.pipeline.request import RunRequest
    from pgcli.results.row_hook import RowHook

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
        is_ordered: bool = False,
        note_stamp: NoteStamp = ignore_stamp,
    ) -> None:
        """Answer rows in other processes, and save each in the sink as it arrives.

        With `is_ordered`, rows are saved in input order. The folder `state` has the recorded input.
        """
        with (
            self.progress.answering(loads=self.model.checkpoint.name),
            sink as save_line,
            self._in_order(save_line, ranges, is_ordered=is_ordered) as save,
            closing(self._workers(ranges, state).messages()) as messages,
        ):
            for message in messages:
                if isinstance(message, RowsAnswered):
                    for index, stamp in message.stamps.items():
                        note_stamp(index, stamp)
                    for number, line in enumerate(message.lines or (), message.first):
                        save(number, line)
                    if self.output is not None and message.lines is None:
                        codes = Counter(code for code, _ in message.errors)
                        self.output.add_part(message.rows, codes)
                    self.progress.show_limits(message.limits)
                    self.progress.add(message.counts, message.errors)
                elif isinstance(message, EngineInfo) and self.model.info is None:
                    self._note_engine(message)
                elif isinstance(message, RowsLost):
                    for number, row in self._error_rows(message.rows):
                        save(number, json_line(row, self.schema).encode())
                        self.progress.tally.count(row)
                        self.progress.update(row)

    @contextmanager
    def _in_order(
        self, save: SaveLine, ranges: Sequence[range], *, is_ordered: bool
    ) -> Iterator[SaveLine]:
        """Yield what saves rows, in input order with `is_ordered`; hooks get them in order."""
        if not (is_ordered or self.hooks):
            yield save
            return
        items = (item for rows in ranges for item in self.rows.item_of_each(rows))

        def deliver(first: int, lines: Sequence[bytes]) -> None:
            for number, line in enumerate(lines, first):
                if is_ordered:
                    save(number, line)
                if self.hooks:
                    row = self.schema.answer(parse_row(line) or {})
                    self.pass_to_hooks([(number, next(items), row)])

        def save_and_pass_on(number: int, line: bytes) -> None:
            if not is_ordered:
                save(number, line)
            ordered.save(number, line)

        with in_order_of(ranges, deliver) as ordered:
            yield save_and_pass_on

    def _workers(self, ranges: Sequence[range], state: Store) -> Workers:
        """The engines for ranges of rows of the input recorded in a state folder."""
        request, total = self.request, sum(map(len, ranges))
        if request.model.ray is not None:
            from pgcli.pipeline.workers.ray_engines import RayEngines

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
            self.output.note_model(info)

    def _error_rows(self, rows: range) -> Iterator[tuple[int, Answer]]:
        """The failed rows of an image that crashed too many engines."""
        label = self.model.info.label if self.model.info else ""
        for first, item in self.rows.numbered(rows):
            image = DecodedImage(item, None, None, None, 0.0, CRASHED)
            for number, prompt in enumerate(item.prompts, first):
                task = self.request.question.task
                yield number, error_answer(image, prompt, task=task, model=label)
