"""Cuts a stream of decoded images into chunks, which follow from the input and settings alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from pgcli.records import DecodedImage

#: Images, each with the index of its first row.
NumberedImages = tuple[tuple[int, DecodedImage], ...]


def image_chunks(
    stream: Iterable[tuple[int, DecodedImage]], most_images: int, file_rows: int
) -> Iterator[NumberedImages | None]:
    """The images of each chunk, in order; None after each image that does not complete one.

    A chunk has `most_images` images at most, and only rows of one file of the output, which has
    `file_rows` rows: the prompts of an image at the end of a file may be in two chunks.
    """
    collected: list[tuple[int, DecodedImage]] = []
    for first, image in split_images(stream, file_rows):
        if collected and collected[0][0] // file_rows != first // file_rows:
            yield tuple(collected)
            collected = []
        collected.append((first, image))
        if len(collected) == most_images:
            yield tuple(collected)
            collected = []
        else:
            yield None
    if collected:
        yield tuple(collected)


def split_images(
    stream: Iterable[tuple[int, DecodedImage]], file_rows: int
) -> Iterator[tuple[int, DecodedImage]]:
    """The images, each with prompts whose rows are in one file only."""
    for first, image in stream:
        item, count = image.item, len(image.item.prompts)
        bounds = [0, *range(file_rows - first % file_rows, count, file_rows), count]
        if len(bounds) == 2:
            yield first, image
            continue
        for start, stop in pairwise(bounds):
            part = replace(item, prompts=item.prompts[start:stop])
            yield first + start, replace(image, item=part)
