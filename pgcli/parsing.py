"""Parses answers: spans of generated tokens in, boxes and their mask codes out, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby, takewhile, zip_longest
from typing import Literal

from pgcli.records import Box, Span

GRID = 1023  # a location token is a side's fraction times 1023, rounded (big_vision trains it so)
MASK_TOKENS = 16  # a mask is the codes of a 4 x 4 grid, row by row
SEPARATOR = ";"  # between the objects of an answer, so no label contains one


LOCATION = re.compile(r"<loc([0-9]{4})>")
TOKEN = re.compile(r"<(?P<kind>loc|seg)(?P<value>(?<=loc)[0-9]{4}|(?<=seg)[0-9]{3})>")


@dataclass(frozen=True, slots=True)
class SegmentedBox:
    """A detected object and its 16 mask codes; None if the answer has no complete mask for it."""

    box: Box
    codes: tuple[int, ...] | None


def has_locations(text: str) -> bool:
    """Whether a text has location tokens."""
    return LOCATION.search(text) is not None


def text_spans(text: str) -> list[Span]:
    """The location and mask tokens of an answer, and the text between them."""
    spans, end = [], 0
    for match in TOKEN.finditer(text):
        if match.start() > end:
            spans.append(Span("text", text[end : match.start()]))
        kind: Literal["location", "mask"] = "location" if match["kind"] == "loc" else "mask"
        spans.append(Span(kind, match[0], int(match["value"])))
        end = match.end()
    return [*spans, Span("text", text[end:])] if end < len(text) else spans


def boxes(spans: Sequence[Span], *, width: int, height: int) -> tuple[Box, ...]:
    """Every complete box in a detection answer, in pixels of a `width` x `height` image.

    A group cut short by the token limit, or with its corners out of order, is dropped; the boxes
    around it are kept. `score` is the product of the four location tokens' probabilities,
    `confidence` the geometric mean of the confidences of the locations near each.
    """
    return tuple(segment.box for segment in segments(spans, width=width, height=height))


def segments(spans: Sequence[Span], *, width: int, height: int) -> tuple[SegmentedBox, ...]:
    """The boxes that `boxes` returns, in the same order, each with the mask codes after it."""
    segmented_boxes = []
    for corners, codes, label in box_groups(spans):
        top, left, bottom, right = ((span.value or 0) / GRID for span in corners)  # y before x
        if top < bottom and left < right:
            pixels = (left * width, top * height, right * width, bottom * height)
            score = math.prod(span.probability for span in corners)
            segmented_boxes.append(
                SegmentedBox(Box(label, *pixels, score, confidence(corners)), codes)
            )
    return tuple(segmented_boxes)


def confidence(corners: Sequence[Span]) -> float | None:
    """The geometric mean of the corners' `near` probabilities; None if they are not known."""
    near_probabilities = [span.near for span in corners if span.near is not None]
    if len(near_probabilities) < len(corners):
        return None
    return min(1.0, math.prod(near_probabilities) ** (1 / len(near_probabilities)))


def box_groups(
    spans: Sequence[Span],
) -> Iterator[tuple[list[Span], tuple[int, ...] | None, str]]:
    """The four locations, mask codes and label of each box in an answer.

    Exactly four consecutive location tokens begin a box: a run of three or five is ambiguous and is
    dropped with its label. The label is the text up to the next separator or location, without mask
    tokens. A group that ends before its label is incomplete and dropped; an incomplete label is
    kept, because its corners are complete. With a complete mask the label may be empty: checkpoints
    for referring expressions answer with locations and a mask only.
    """
    corners: list[Span] = []
    for is_location, run in groupby(spans, key=lambda span: span.kind == "location"):
        if is_location:
            corners = list(run)
            continue
        tail = list(run)
        codes = mask_codes(tail)
        text = "".join(span.text for span in tail if span.kind == "text")
        label = text.partition(SEPARATOR)[0].strip()
        if len(corners) == 4 and (label or codes):
            yield corners, codes, label


def mask_codes(spans: Sequence[Span]) -> tuple[int, ...] | None:
    """The codes of the mask at the beginning of the spans, after any blanks.

    None unless they begin with a run of exactly 16 mask tokens: as big_vision parses answers, a
    mask is between the locations and the label, and a shorter or longer run is not one.
    """
    after_blanks = dropwhile(lambda span: span.kind == "text" and not span.text.strip(), spans)
    run = takewhile(lambda span: span.kind == "mask", after_blanks)
    codes = tuple(span.value for span in run if span.value is not None)
    return codes if len(codes) == MASK_TOKENS else None


def detection_text(
    boxes: Sequence[Box],
    codes: Sequence[Sequence[int] | None] = (),
    *,
    width: int,
    height: int,
) -> str:
    """The answer that has the boxes of a row, with the codes of their masks: `boxes` reversed."""
    parts = []
    for box, own_codes in zip_longest(boxes, codes[: len(boxes)]):
        corners = ((box.ymin, height), (box.xmin, width), (box.ymax, height), (box.xmax, width))
        places = (round(corner / max(side, 1) * GRID) for corner, side in corners)
        locations = "".join(f"<loc{min(max(place, 0), GRID):04}>" for place in places)
        segments = "".join(f"<seg{code:03}>" for code in own_codes or ())
        parts.append(f"{locations}{segments} {box.label}")
    return f" {SEPARATOR} ".join(parts)
