"""An engine in a process of its own: it loads the model, answers ranges of rows, and sends them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgcli.pipeline import task as tasks
from pgcli.pipeline.checks import read_options
from pgcli.pipeline.model import engine_info
from pgcli.pipeline.progress.tally import Tally
from pgcli.pipeline.rows import Numbered, RunRows
from pgcli.pipeline.state.folder import load_inventory
from pgcli.pipeline.workers.messages import Message, WorkBegun, WorkDone
from pgcli.pipeline.workers.row_images import RowImages
from pgcli.pipeline.workers.slots import EngineSlot
from pgcli.pipeline.workers.work import Work
from pgcli.records import DecodedImage
from pgcli.stores import open_folder

if TYPE_CHECKING:
    from pgcli.pipeline.request import RunRequest

Send = Callable[[Message], object]


@dataclass(frozen=True, slots=True)
class EngineTask:
    """What an engine answers: rows of a request, whose input is recorded in the folder `state`."""

    request: RunRequest
    slot: EngineSlot
    state: str


def recorded_rows(task: EngineTask) -> RunRows:
    """The rows of a task, as its input is recorded."""
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
    """Load the model and answer the rows of works, as one stream, until there are no more.

    Of each work is sent that it has begun, its rows one by one in order, and that it is done.
    Nothing is written.
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
        send_rows(request, engine, images, received, should_stop, send)


def numbered_items(rows: RunRows, works: Iterator[Work], received: deque[Work]) -> Numbered:
    """The items of works, one after the other; `received` gets each work whose items are read."""
    for work in works:
        received.append(work)
        yield from rows.numbered(work.rows)


def send_rows(
    request: RunRequest,
    engine: Any,
    images: RowImages,
    received: deque[Work],
    should_stop: Callable[[], bool],
    send: Send,
) -> None:
    """Answer the images of works that were received, and send what becomes of each work.

    In float32 each work is a batch of its own: rows have the same bytes whoever answers them.
    """
    tally, stamps, begun = Tally(), dict[int, Any](), deque[Work]()
    hits = prompts = 0

    def on_image(first: int, image: DecodedImage) -> None:
        stamps[image.item.index] = image.stamp
        if received and first == received[0].rows.start:
            begun.append(received.popleft())
            send(WorkBegun(begun[-1].rows))

    stream = images.take(tally, on_image)
    if engine.dtype == "float32":
        stream = one_by_one(stream, begun)
    answers = tasks.answer_function(request, engine, should_stop)
    for number, _, row in answers(stream):
        send((number, row, stamps.pop(row.index, None)))
        if number + 1 == begun[0].rows.stop:
            stats, limits = engine.image_stats, engine.batch_limits.summary()
            counts = stats.hits - hits, stats.prompts - prompts
            done = begun.popleft().rows
            send(WorkDone(done, tally.images, tally.waited_seconds, *counts, limits))
            tally.images, tally.waited_seconds = 0, 0.0
            hits, prompts = stats.hits, stats.prompts


def one_by_one(
    images: Iterator[tuple[int, DecodedImage] | None], begun: deque[Work]
) -> Iterator[tuple[int, DecodedImage] | None]:
    """The images, with None after the last one of each work, so that no batch has rows of two."""
    for numbered in images:
        if numbered is None:
            continue  # how long it takes until an image is decoded must not matter either
        first, image = numbered
        is_last = first + len(image.item.prompts) == begun[-1].rows.stop
        yield numbered
        if is_last:
            yield None
