"""A generated row -> the answer that is saved: its text, its boxes, its share of the time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pgcli import parse
from pgcli.engine.batches import Request
from pgcli.engine.generate import Growing
from pgcli.engine.tokens import Vocabulary
from pgcli.records import Answer, Box, Picture, Piece, Task


def answer_of(
    request: Request,
    row: Growing,
    *,
    vocabulary: Vocabulary,
    task: Task,
    model: str,
    vision_ms: float,
    batch: int,
) -> Answer:
    """The row that answers the request; `batch` is how many shared its prefill."""
    picture, item = request.picture, request.picture.item
    words = len(row.tokens) - (row.finish == "stop")
    probabilities = [math.exp(logprob) for logprob in row.logprobs[:words]]
    pieces = vocabulary.pieces(row.tokens[:words], probabilities)
    return Answer(
        index=item.index,
        id=item.id,
        image=item.image,
        width=picture.width,
        height=picture.height,
        task=task,
        prompt=request.prompt,
        answer="".join(piece.text for piece in pieces).strip(),
        boxes=boxes_of(picture, pieces),
        tokens=len(row.tokens),
        finish=row.finish,
        logprob=sum(row.logprobs) / len(row.logprobs),
        load_ms=picture.load_ms,
        vision_ms=vision_ms,
        prefill_ms=row.prefill_ms,
        decode_ms=row.decode_ms,
        batch=batch,
        model=model,
        error=None,
        error_message=None,
        kept=item.kept,
    )


def boxes_of(picture: Picture, pieces: Sequence[Piece]) -> tuple[Box, ...]:
    """The answer's boxes on the upright picture, of which the model saw the region only."""
    assert picture.width is not None
    assert picture.height is not None
    left, top, right, bottom = picture.region or (0, 0, picture.width, picture.height)
    return tuple(
        replace(
            box,
            xmin=box.xmin + left,
            ymin=box.ymin + top,
            xmax=box.xmax + left,
            ymax=box.ymax + top,
        )
        for box in parse.boxes(pieces, width=right - left, height=bottom - top)
    )
