"""A finished row of a batch -> the answer that is saved: its text, its boxes, its share of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from pgcli import parsing
from pgcli.engine.choices import ChoiceOutput
from pgcli.engine.mask_output import masks_of_rows
from pgcli.engine.sequence import Growing
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.mask_decoder import MaskDecoder
from pgcli.records import Answer, DecodedImage, Mask, Span

#: The row of a picture and a prompt before it is answered.
Blank = Callable[[DecodedImage, str], Answer]
#: A row and the place where it goes.
Placed = tuple[int, Answer]


class Telling:
    """Tells rows that have ended as answers; the masks of several are decoded together."""

    def __init__(self, vocabulary: Tokenizer, mask_decoder: MaskDecoder | None):
        self._vocabulary = vocabulary
        self._mask_decoder = mask_decoder

    def answers(self, ended: Sequence[tuple[Answer, Growing]]) -> list[Answer]:
        """The rows with their answers."""
        rows, told = zip(*ended, strict=True)
        pieces = [self._pieces(one) for one in told]
        masks: Sequence[tuple[Mask | None, ...] | None] = [None] * len(rows)
        if rows[0].task == "segment":
            sizes = [(row.width or 0, row.height or 0) for row in rows]
            masks = masks_of_rows(zip(pieces, sizes, strict=True), self._mask_decoder)
        return list(map(generated, rows, told, pieces, masks))

    def _pieces(self, row: Growing) -> list[Span]:
        words = len(row.tokens) - row.stopped
        probabilities = [math.exp(logprob) for logprob in row.logprobs[:words]]
        return self._vocabulary.decode(row.tokens[:words], probabilities)


def generated(
    row: Answer,
    told: Growing,
    pieces: Sequence[Span],
    masks: tuple[Mask | None, ...] | None = None,
) -> Answer:
    """The row with a generated answer, whose pieces give its text and its boxes."""
    assert row.width is not None
    assert row.height is not None
    return replace(
        row,
        answer="".join(piece.text for piece in pieces).strip(),
        boxes=parsing.boxes(pieces, width=row.width, height=row.height),
        tokens=len(told.tokens),
        finish=told.finish,
        logprob=sum(told.logprobs) / len(told.logprobs),
        prefill_ms=told.prefill_ms,
        decode_ms=told.decode_ms,
        masks=masks,
    )


def picked(row: Answer, scored: ChoiceOutput) -> Answer:
    """The row with the likeliest of its candidates for an answer: no token was generated."""
    return replace(
        row,
        answer=scored.choices[scored.best].text,
        logprob=scored.logprob,
        prefill_ms=scored.prefill_ms,
        decode_ms=scored.decode_ms,
        choices=scored.choices,
    )


def oom_answer(row: Answer) -> Answer:
    """The row where there is no memory for it even alone."""
    return replace(
        row,
        error="oom",
        error_message="There is too little memory for this row even alone; --dtype bfloat16, "
        "a smaller model or another --device may do with it.",
    )
