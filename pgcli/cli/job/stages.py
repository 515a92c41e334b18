"""The stage of the pipeline before the model: decoding of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pgcli.cli.job.input import RunInput
from pgcli.pipeline import Decode
from pgcli.records import DecodedImage, Item

if TYPE_CHECKING:
    from pgcli.images import ImageSpec


def decode_stage(
    input: RunInput,
    spec: ImageSpec,
    device: str,
    should_stop: Callable[[], bool],
    *,
    resumes: bool,
    stamps: bool,
) -> Decode:
    """The function that decodes items ahead of a model, in worker processes unless they are few.

    A resumed run always uses worker processes: the run before may have died of an image, which
    then becomes an error row. So does a run that reads URLs, whose images are not trusted. With
    `stamps`, images are stamped, so that a later run can compare them.
    """
    if input.plan.question.embeds_texts:
        return undecoded

    from PIL import Image

    from pgcli import images, workers
    from pgcli.device.decoding import decoding_processes

    Image.MAX_IMAGE_PIXELS = None  # --max-pixels is the limit that counts in this process

    options = input.options.input
    spec = replace(spec, fast_decode=options.fast_decode)
    return partial(
        workers.prefetch,
        decode=images.ImageDecoder(spec, input.plan.image_limits, stamps),
        workers=options.workers,
        total=None if resumes or input.url_reader else input.images,
        should_stop=should_stop,
        fetcher=input.url_reader,
        pauses=input.source.total is None,
        default_workers=decoding_processes(device),
    )


def undecoded(items: Iterable[Item]) -> Iterator[DecodedImage]:
    """Items that are texts, as images without pixels."""
    return (DecodedImage(item, None, None, None, 0.0) for item in items)
