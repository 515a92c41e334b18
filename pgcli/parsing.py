"""Read the model's answer: generated ids in, boxes and their mask codes out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby, takewhile

from pgcli.records import Box, Span

GRID = 1023  # a location token is a side's fraction times 1023, rounded (big_vision trains it so)
MASK_TOKENS = 16  # a mask is spelled as the codes of a 4 x 4 grid, row by row
SEPARATOR = ";"  # stands between the objects of an answer, so no label holds one


@dataclass(frozen=True, slots=True)
class Segment:
    """A found object and its 16 mask codes; None where the answer has no whole mask for it."""

    box: Box
    codes: tuple[int, ...] | None


def boxes(pieces: Sequence[Span], *, width: int, height: int) -> tuple[Box, ...]:
    """Every complete box in a detection answer, in pixels of a `width` x `height` image.

    A group cut short by the token limit, or with its corners out of order, is dropped; the boxes
    around it are kept. `score` is the product of the four location tokens' probabilities.
    """
    return tuple(segment.box for segment in segments(pieces, width=width, height=height))


def segments(pieces: Sequence[Span], *, width: int, height: int) -> tuple[Segment, ...]:
    """What `boxes` returns, in the same order, each box with the mask codes that follow it."""
    found = []
    for corners, codes, label in groups(pieces):
        top, left, bottom, right = (place / GRID for place, _ in corners)  # y before x
        if top < bottom and left < right:
            score = math.prod(probability for _, probability in corners)
            box = Box(label, left * width, top * height, right * width, bottom * height, score)
            found.append(Segment(box, codes))
    return tuple(found)


def groups(
    pieces: Sequence[Span],
) -> Iterator[tuple[list[tuple[int, float]], tuple[int, ...] | None, str]]:
    """Each box of an answer as it is spelled: four (place, probability), mask codes, label.

    Exactly four location tokens in a row open a box: a run of three or of five has no right
    reading and is dropped with its label. The label is the text up to the next separator or
    location, mask tokens left out; a group that ends before its label is cut short and dropped,
    a label that is itself cut short is kept, as its corners are whole. With a whole mask the label
    may be empty: checkpoints for referring expressions answer with locations and mask alone.
    """
    corners: list[tuple[int, float]] = []
    for is_location, run in groupby(pieces, key=lambda piece: piece.kind == "location"):
        if is_location:
            corners = [(at.value, at.probability) for at in run if at.value is not None]
            continue
        rest = list(run)
        codes = mask_codes(rest)
        text = "".join(piece.text for piece in rest if piece.kind == "text")
        label = text.partition(SEPARATOR)[0].strip()
        if len(corners) == 4 and (label or codes):
            yield corners, codes, label


def mask_codes(pieces: Sequence[Span]) -> tuple[int, ...] | None:
    """The codes of the mask that the pieces begin with, blanks before it passed over.

    None where they begin with no run of exactly 16: as big_vision reads answers, a mask stands
    between the locations and the label, and a shorter or longer run spells none.
    """
    begun = dropwhile(lambda piece: piece.kind == "text" and not piece.text.strip(), pieces)
    run = takewhile(lambda piece: piece.kind == "mask", begun)
    codes = tuple(piece.value for piece in run if piece.value is not None)
    return codes if len(codes) == MASK_TOKENS else None
