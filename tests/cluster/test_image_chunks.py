"""How a stream of images is cut into chunks."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pgcli.cluster.image_chunks import NumberedImages, image_chunks
from pgcli.records import DecodedImage, Item


def stream(images: int, prompts: int) -> Iterator[tuple[int, DecodedImage]]:
    for index in range(images):
        item = Item(index, str(index), "", prompts=tuple(f"{index}.{n}" for n in range(prompts)))
        yield index * prompts, DecodedImage(item, 1, 1, None, 0.0)


def prompts_of(chunk: NumberedImages) -> list[tuple[int, tuple[str, ...]]]:
    return [(first, image.item.prompts) for first, image in chunk]


def test_a_chunk_is_complete_with_its_last_image() -> None:
    found = list(image_chunks(stream(5, 1), 2, sys.maxsize))
    assert [chunk and [first for first, _ in chunk] for chunk in found] == [
        None,
        [0, 1],
        None,
        [2, 3],
        None,
        [4],
    ]


def test_no_chunk_has_rows_of_two_files() -> None:
    chunks = [chunk for chunk in image_chunks(stream(4, 3), 100, 4) if chunk]
    assert [prompts_of(chunk) for chunk in chunks] == [
        [(0, ("0.0", "0.1", "0.2")), (3, ("1.0",))],
        [(4, ("1.1", "1.2")), (6, ("2.0", "2.1"))],
        [(8, ("2.2",)), (9, ("3.0", "3.1", "3.2"))],
    ]


def test_an_image_of_more_prompts_than_rows_in_a_file_is_in_several_chunks() -> None:
    chunks = [chunk for chunk in image_chunks(stream(1, 5), 100, 2) if chunk]
    assert [prompts_of(chunk) for chunk in chunks] == [
        [(0, ("0.0", "0.1"))],
        [(2, ("0.2", "0.3"))],
        [(4, ("0.4",))],
    ]


def test_files_of_whole_images_and_empty_streams() -> None:
    chunks = [chunk for chunk in image_chunks(stream(3, 2), 100, 4) if chunk]
    assert [[first for first, _ in chunk] for chunk in chunks] == [[0, 2], [4]]
    assert list(image_chunks(iter(()), 2, 4)) == []
