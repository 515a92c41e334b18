"""An engine in another process: it loads the model, answers ranges of rows and sends the rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgcli.output.lines import json_line
from pgcli.records import Answer, DecodedImage, Item
from pgcli.rows import RowSchema
from pgcli.run import model as tasks
from pgcli.run.checks import read_options
from pgcli.run.input_rows import Numbered, RowImages, RunRows
from pgcli.run.model import engine_info
from pgcli.run.progress import Error, Tally
from pgcli.run.state.folder import load_inventory
from pgcli.run.workers.work import EngineMessage, EngineSlot, RowsAnswered, Work, WorkBegun
from pgcli.stores import open_folder

if TYPE_CHECKING:
    from pgcli.inputs.file_table import Stamp
    from pgcli.run.request import RunRequest

Send = Callable[[EngineMessage], object]


@dataclass(frozen=True, slots=True)
class EngineTask:
    """A request for an engine, with the input recorded in the folder `state`.

    The engine sends rows as lines with the columns of `schema`.
    """

    request: RunRequest
    slot: EngineSlot
    state: str
    schema: RowSchema


def rows_of_task(task: EngineTask) -> RunRows:
    """The rows of the task's recorded input."""
    request, state = task.request, open_folder(task.state)
    inventory = load_inventory(state, request.sources, read_options(request))
    assert inventory is not None, "the run has begun"
    return RunRows(inventory, request.question, request.input.limit)


def answer_works(
    task: EngineTask,
    rows: RunRows,
    works: Iterator[Work],
    should_stop: Callable[[], bool],
    send: Send,
) -> None:
    """Load the model and answer works as one stream, until there are no more.

    For each work, `send` gets a message when it begins, then its rows in order. No file is written.
    """
    import torch

    request, slot = task.request, task.slot
    torch.set_num_threads(slot.threads)
    checkpoint, adapter = tasks.find_checkpoints(request)
    received: deque[Work] = deque()
    items = numbered_items(rows, works, received)
    with RowImages(
        request, items, checkpoint.folder, slot.device, should_stop, total=None, pauses=True
    ) as images:
        engine = tasks.load_engine(request, checkpoint, adapter, slot.device)
        send(engine_info(request, engine))
        send_rows(task, engine, images, received, should_stop, send)


def numbered_items(rows: RunRows, works: Iterator[Work], received: deque[Work]) -> Numbered:
    """The items of works, one after the other; `received` gets each work before its items."""
    for work in works:
        received.append(work)
        yield from rows.numbered(work.rows)


def send_rows(
    task: EngineTask,
    engine: Any,
    images: RowImages,
    received: deque[Work],
    should_stop: Callable[[], bool],
    send: Send,
) -> None:
    """Answer the images of received works, and send their rows.

    The rows that one step of the model finishes are one message: an engine calls `should_stop`
    before each step, and finished rows are sent then. In float32 each work is a separate batch, so
    that rows are equal whichever engine answers them.
    """
    ready, begun = ReadyRows(task.schema, engine), deque[Work]()
    taken = Tally()  # the time spent waiting for images since the last message

    def on_image(first: int, image: DecodedImage) -> None:
        ready.stamps[image.item.index] = image.stamp
        if received and first == received[0].rows.start:
            begun.append(received.popleft())
            send(WorkBegun(begun[-1].rows))

    def send_ready() -> None:
        if ready.lines:
            ready.tally.waited_seconds, taken.waited_seconds = taken.waited_seconds, 0.0
            send(ready.take())

    def sends_and_stops() -> bool:
        send_ready()
        return should_stop()

    stream = images.take(taken, on_image)
    if engine.dtype == "float32":
        stream = one_by_one(stream, begun)
    for number, item, row in tasks.answer_function(task.request, engine, sends_and_stops)(stream):
        if row.error is not None:  # sent alone: consecutive errors are counted
            send_ready()
        ready.add(number, item, row)
        is_last = number + 1 == begun[0].rows.stop
        if is_last:
            begun.popleft()
        if is_last or row.error is not None:
            send_ready()
    send_ready()


class ReadyRows:
    """Answered rows that are not sent yet, with their counts, errors and stamps."""

    def __init__(self, schema: RowSchema, engine: Any):
        self._schema, self._engine = schema, engine
        self.lines, self.errors, self.tally = list[bytes](), list[Error](), Tally()
        self.stamps = dict[int, "Stamp | None"]()
        self._next = self._of_image = self._hits = self._prompts = 0

    def add(self, number: int, item: Item, row: Answer) -> None:
        """Add the next row."""
        self.lines.append(json_line(row, self._schema).encode())
        self.tally.count(row)
        if row.error is not None:
            self.errors.append((row.error, self.tally.last_error))
        # an image counts with its last row: another worker may have answered the rows before
        self._of_image = (self._of_image + 1) % len(item.prompts)
        self.tally.images += self._of_image == 0
        self._next = number + 1

    def take(self) -> RowsAnswered:
        """The message with these rows; the next message starts empty."""
        stats, tally, first = self._engine.image_stats, self.tally, self._next - len(self.lines)
        tally.hits, tally.prompts = stats.hits - self._hits, stats.prompts - self._prompts
        self._hits, self._prompts = stats.hits, stats.prompts
        limits = self._engine.batch_limits.summary()
        rows = RowsAnswered(first, self.lines, tally.counts, self.errors, self.stamps, limits)
        self.lines, self.errors, self.stamps, self.tally = [], [], {}, Tally()
        return rows


def one_by_one(
    images: Iterator[tuple[int, DecodedImage] | None], begun: deque[Work]
) -> Iterator[tuple[int, DecodedImage] | None]:
    """The images, with None after the last image of each work, so that no batch mixes two works."""
    for numbered in images:
        if numbered is None:
            continue  # batches must not depend on decoding times
        first, image = numbered
        is_last = first + len(image.item.prompts) == begun[-1].rows.stop
        yield numbered
        if is_last:
            yield None
