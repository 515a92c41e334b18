"""A finished row of a batch -> the answer that is saved: its text, its boxes, its share of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgcli import parse
from pgcli.engine.choices import Scored
from pgcli.engine.generate import Growing
from pgcli.records import Answer, Mask, Piece


def generated(
    row: Answer,
    told: Growing,
    pieces: Sequence[Piece],
    masks: tuple[Mask | None, ...] | None = None,
) -> Answer:
    """The row with a generated answer, whose pieces give its text and its boxes."""
    assert row.width is not None
    assert row.height is not None
    return replace(
        row,
        answer="".join(piece.text for piece in pieces).strip(),
        boxes=parse.boxes(pieces, width=row.width, height=row.height),
        tokens=len(told.tokens),
        finish=told.finish,
        logprob=sum(told.logprobs) / len(told.logprobs),
        prefill_ms=told.prefill_ms,
        decode_ms=told.decode_ms,
        masks=masks,
    )


def picked(row: Answer, scored: Scored) -> Answer:
    """The row with the likeliest of its candidates for an answer: no token was generated."""
    return replace(
        row,
        answer=scored.choices[scored.best].text,
        logprob=scored.logprob,
        prefill_ms=scored.prefill_ms,
        decode_ms=scored.decode_ms,
        choices=scored.choices,
    )
