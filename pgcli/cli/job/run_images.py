"""The images of a run, whose decoding begins while the model is loaded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from pgcli.checkpoints.find import Checkpoint
from pgcli.cli.job.input import RunInput
from pgcli.cli.job.missing_images import check_missing
from pgcli.cli.job.output import RunOutput
from pgcli.cli.job.stages import decode_stage
from pgcli.device.nvidia_driver import visible_gpus
from pgcli.engine.image_spec import read_image_spec
from pgcli.pipeline import Decode
from pgcli.records import DecodedImage, Item

if TYPE_CHECKING:
    from pgcli.images import StampComparison


@dataclass
class RunImages:
    """The items of a run, and the function that returns the images of those that are not answered.

    The pipeline sets `should_stop`.
    """

    items: Iterable[Item]
    decode: Decode
    should_stop: Callable[[], bool] = lambda: False


@contextmanager
def open_images(
    input: RunInput, output: RunOutput, items: Iterable[Item], checkpoint: Checkpoint
) -> Iterator[RunImages]:
    """The images of a run, as the model of a checkpoint reads them.

    Of a new output they are decoded from now on. Otherwise, and where standard input is read, the
    items are compared with saved rows first. Raises InvalidCheckpoint and NoUsableDevice.
    """
    device = input.options.model.device
    decode = decode_stage(
        input,
        read_image_spec(checkpoint.folder),
        "cuda" if device == "auto" and visible_gpus() else device,
        lambda: images.should_stop(),
        resumes=output.resumes,
        stamps=output.state is not None,
    )
    images = RunImages(items, check_before(decode, input, output))
    if output.resumes or input.source.total is None:
        yield images
        return
    with closing(cast("Generator[DecodedImage]", decode(items))) as decoded:
        ahead = DecodedAhead(decoded)
        images.items, images.decode = ahead.items(), ahead.decode
        yield images


class DecodedAhead:
    """A stream of decoded images as a source of items and as the function that decodes them."""

    def __init__(self, images: Iterable[DecodedImage]):
        self._images = images
        self._held: deque[DecodedImage] = deque()

    def items(self) -> Iterator[Item]:
        """The item of each image."""
        for image in self._images:
            self._held.append(image)
            yield image.item

    def decode(self, items: Iterable[Item]) -> Iterator[DecodedImage]:
        """The images of the items that are left of `items()`, with their prompts."""
        for item in items:
            image = self._held.popleft()
            while image.item.index != item.index:
                image = self._held.popleft()
            yield image if image.item is item else replace(image, item=item)


def check_before(decode: Decode, input: RunInput, output: RunOutput) -> Decode:
    """The function `decode`; a resumed run whose images are missing ends before it."""
    if output.state is None or input.options.running.max_errors is not None:
        return decode
    saved = cast("StampComparison", output.state.rules.images)
    name = input.options.output.output
    return lambda items: decode(check_missing(items, saved, name))
