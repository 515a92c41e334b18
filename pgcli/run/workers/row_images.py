"""The images of rows, decoded ahead of the model in worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from pgcli.checkpoints.model_description import read_image_spec
from pgcli.records import DecodedImage, Item
from pgcli.run.checks import image_limits
from pgcli.run.progress.tally import Tally
from pgcli.run.rows import Numbered
from pgcli.run.workers.answer import END

if TYPE_CHECKING:
    from pathlib import Path

    from pgcli.run.request import RunRequest


class RowImages:
    """The images of numbered items, decoded ahead of the model, also while it loads.

    Leaving the `with` block ends the processes. With `keeps_items`, images keep their items with
    the bytes, which are dropped otherwise. With `pauses`, items may arrive slowly.
    """

    def __init__(
        self,
        request: RunRequest,
        items: Numbered,
        model_folder: Path,
        device: str,
        should_stop: Callable[[], bool],
        *,
        total: int | None,
        pauses: bool = False,
        keeps_items: bool = False,
    ):
        self._should_stop, self._pauses, self._keeps_items = should_stop, pauses, keeps_items
        # the first row of each image in decoding, and its item with `keeps_items`
        self._decoding: deque[tuple[int, Item | None]] = deque()
        self._images = self._decode(request, self._items(items), model_folder, device, total)

    def __enter__(self) -> RowImages:
        return self

    def __exit__(self, *problem: object) -> None:
        self._images.close()

    def take(
        self, tally: Tally, on_image: Callable[[int, DecodedImage], object]
    ) -> Iterator[tuple[int, DecodedImage] | None]:
        """The images with their first rows; None while no image arrives.

        The tally counts them and the time spent waiting for them; `on_image` gets each image.
        """
        while True:
            began = perf_counter()
            image = next(self._images, END)
            tally.waited_seconds += perf_counter() - began
            if image is END:
                return
            if image is None:
                yield None
                continue
            tally.images += 1
            first, item = self._decoding.popleft()
            on_image(first, image)
            yield first, image if item is None else replace(image, item=item)

    def _items(self, items: Numbered) -> Iterator[Item]:
        for first, item in items:
            self._decoding.append((first, item if self._keeps_items else None))
            yield item

    def _decode(
        self,
        request: RunRequest,
        items: Iterator[Item],
        model_folder: Path,
        device: str,
        total: int | None,
    ) -> Generator[DecodedImage | None, None, None]:
        """The decoded images of the items, from worker processes unless there are few.

        A resumed run always uses worker processes (`total` is None): an image may have crashed the
        earlier run, and becomes a failed row. A run that reads URLs uses them, too.
        """
        if request.question.embeds_texts:
            return (DecodedImage(item, None, None, None, 0.0) for item in items)
        from PIL import Image

        from pgcli.device.machine import decoding_processes, visible_gpus
        from pgcli.images import ImageDecoder
        from pgcli.images.pool import decode_ahead

        if device == "auto":  # the model is not loaded yet
            device = "cuda" if visible_gpus() else "cpu"
        Image.MAX_IMAGE_PIXELS = None  # --max-pixels limits the size instead
        options, spec = request.input, read_image_spec(model_folder)
        reader = options.url_reader
        return decode_ahead(
            items,
            ImageDecoder(replace(spec, fast_decode=options.fast_decode), image_limits(request)),
            workers=options.workers,
            total=None if reader is not None else total,
            should_stop=self._should_stop,
            reader=reader,
            pauses=self._pauses,
            default_workers=decoding_processes(device),
        )
