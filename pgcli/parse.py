"""Read the model's answer: generated ids in, boxes out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from pgcli.records import Box, Piece

GRID = 1023  # a location token is a side's fraction times 1023, rounded (big_vision trains it so)
SEPARATOR = ";"  # stands between the objects of an answer, so no label holds one


def boxes(pieces: Sequence[Piece], *, width: int, height: int) -> tuple[Box, ...]:
    """Every complete box in a detection answer, in pixels of a `width` x `height` image.

    A group cut short by the token limit, or with its corners out of order, is dropped; the boxes
    around it are kept. `score` is the product of the four location tokens' probabilities.
    """
    found = []
    for corners, label in groups(pieces):
        top, left, bottom, right = (place / GRID for place, _ in corners)  # y before x
        if top < bottom and left < right:
            score = math.prod(probability for _, probability in corners)
            found.append(
                Box(label, left * width, top * height, right * width, bottom * height, score)
            )
    return tuple(found)


def groups(pieces: Sequence[Piece]) -> Iterator[tuple[list[tuple[int, float]], str]]:
    """Each box of an answer as it is spelled: four (place, probability), and the label after them.

    Exactly four location tokens in a row open a box: a run of three or of five has no right
    reading and is dropped with its label. The label is the text up to the next separator or
    location, mask tokens left out; a group that ends before its label is cut short and dropped,
    a label that is itself cut short is kept, as its corners are whole.
    """
    corners: list[tuple[int, float]] = []
    for is_location, run in groupby(pieces, key=lambda piece: piece.kind == "location"):
        if is_location:
            corners = [(at.place, at.probability) for at in run if at.place is not None]
            continue
        text = "".join(piece.text for piece in run if piece.kind == "text")
        label = text.partition(SEPARATOR)[0].strip()
        if len(corners) == 4 and label:
            yield corners, label
