"""Convert finished sequences to answers, and mask codes to run-length encoded masks.

B masks · R resolution of the mask decoder
"""

from __future__ import annotations

import json
import math
from collections import abc
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pgcli import parsing, rle
from pgcli.engine.choices import ChoiceOutput
from pgcli.engine.memory import run_in_chunks
from pgcli.engine.sequence import Sequence
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.mask_decoder import RESOLUTION, MaskDecoder
from pgcli.records import Answer, Box, Mask, Rle, Span, unanswered
from pgcli.tasks import Question

#: A row's index and the row.
RowAnswer = tuple[int, Answer]


class OutputProcessor:
    """Converts finished sequences to answers; masks of several sequences are decoded together."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        mask_decoder: MaskDecoder | None,
        question: Question,
        *,
        model: str,
    ):
        self._tokenizer = tokenizer
        self._mask_decoder = mask_decoder
        self._question = question
        self._model = model

    def answers(self, sequences: abc.Iterable[Sequence]) -> abc.Iterator[RowAnswer]:
        """The rows of these sequences, in the given order."""
        ended = list(sequences)
        for sequence, answer in zip(ended, run_in_chunks(self._answers, ended), strict=True):
            yield (
                sequence.row_index,
                oom_answer(self._unanswered(sequence)) if answer is None else answer,
            )

    def _answers(self, sequences: abc.Sequence[Sequence]) -> list[Answer]:
        spans = [self._spans(sequence) for sequence in sequences]
        masks: abc.Sequence[tuple[Mask | None, ...] | None] = [None] * len(sequences)
        if self._question.task == "segment":
            sizes = [self._size(sequence) for sequence in sequences]
            masks = masks_of_rows(zip(spans, sizes, strict=True), self._mask_decoder)
        return list(map(self._answer, sequences, spans, masks))

    def _answer(
        self, sequence: Sequence, spans: list[Span], masks: tuple[Mask | None, ...] | None
    ) -> Answer:
        row = self._unanswered(sequence)
        if sequence.status == "out_of_memory":
            return oom_answer(row)
        row = replace(
            row,
            vision_ms=sequence.vision_ms,
            prefill_ms=sequence.prefill_ms,
            decode_ms=sequence.decode_ms,
            batch=sequence.batch,
        )
        if sequence.candidates:
            output = ChoiceOutput(sequence.candidates, sequence.candidate_logprobs)
            best, choices = output.best, output.choices
            answer = choices[best].text
            return replace(row, answer=answer, logprob=output.logprob, choices=choices)
        row = replace(
            row,
            answer=text_of(spans),
            tokens=len(sequence.tokens),
            finish=sequence.finish,
            logprob=sum(sequence.logprobs) / len(sequence.logprobs),
        )
        if self._question.schema is not None:
            values = json_values(text_of(spans))
            return self._cut(sequence, spans) if values is None else replace(row, values=values)
        width, height = self._size(sequence)
        boxes = parsing.boxes(spans, width=width, height=height)
        if self._question.box_filter:
            kept = self._question.box_filter.kept(boxes)
            boxes = tuple(boxes[index] for index in kept)
            masks = None if masks is None else tuple(masks[index] for index in kept)
        return replace(row, boxes=boxes, masks=masks)

    def _cut(self, sequence: Sequence, spans: list[Span]) -> Answer:
        """The error row of an answer whose JSON does not end, with its text."""
        return replace(
            self._unanswered(sequence),
            answer=text_of(spans),
            error="cut",
            error_message=f"The JSON is incomplete after {len(sequence.tokens)} tokens; "
            "--max-new-tokens raises the limit.",
        )

    def _spans(self, sequence: Sequence) -> list[Span]:
        count = len(sequence.tokens) - sequence.has_stop_token
        probabilities, near_probabilities = (
            [math.exp(logprob) for logprob in logprobs[:count]]
            for logprobs in (sequence.logprobs, sequence.near_logprobs)
        )
        return self._tokenizer.decode(
            sequence.tokens[:count], probabilities, near_probabilities or None
        )

    def _size(self, sequence: Sequence) -> tuple[int, int]:
        assert sequence.image is not None
        return sequence.image.width or 0, sequence.image.height or 0

    def _unanswered(self, sequence: Sequence) -> Answer:
        assert sequence.image is not None
        task = self._question.task
        return unanswered(sequence.image, sequence.prompt, task=task, model=self._model)


def text_of(spans: abc.Iterable[Span]) -> str:
    """The text of an answer."""
    return "".join(span.text for span in spans).strip()


def json_values(text: str) -> Any:
    """The values of a JSON answer; None if it is cut."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def oom_answer(row: Answer) -> Answer:
    """The error row of a sequence that runs out of memory alone."""
    return replace(
        row,
        error="oom",
        error_message="There is too little memory for this row even alone; --dtype bfloat16, "
        "a smaller model or another --device may do with it.",
    )


MASKS_AT_ONCE = 64  # the decoder's widest layer takes 512 KiB for each
TILE_SIDE = 4096  # pixels; a mask is computed in tiles of at most TILE_PIXELS
TILE_PIXELS = 2**20


def masks_of_rows(
    rows: abc.Iterable[tuple[abc.Sequence[Span], tuple[int, int]]], decoder: MaskDecoder | None
) -> list[tuple[Mask | None, ...]]:
    """The masks of several answers, each with its image's size, all decoded in one pass.

    An answer has a mask for each box, in the order of `parsing.boxes`; None if a box does not have
    exactly 16 codes. Without a decoder masks have codes only. Sizes are width and height in pixels.
    """
    boxes = [(size, parsing.segments(spans, width=size[0], height=size[1])) for spans, size in rows]
    codes = [segment.codes for _, segments in boxes for segment in segments if segment.codes]
    grids = decoded(codes, decoder) if decoder and codes else iter(())

    def mask(segment: parsing.SegmentedBox, size: tuple[int, int]) -> Mask | None:
        if segment.codes is None:
            return None
        return Mask(segment.codes, in_box(next(grids), segment.box, size) if decoder else None)

    return [tuple(mask(segment, size) for segment in segments) for size, segments in boxes]


@torch.inference_mode()
def decoded(codes: abc.Sequence[tuple[int, ...]], decoder: MaskDecoder) -> abc.Iterator[np.ndarray]:
    """The (R, R) float32 logits of each mask; positive pixels belong to the object."""
    code_B16 = torch.tensor(codes, device=decoder.codebook.device)
    parts = [decoder(part).cpu() for part in torch.split(code_B16, MASKS_AT_ONCE)]
    return iter(torch.cat(parts).numpy())


def in_box(grid_RR: np.ndarray, box: Box, size: tuple[int, int]) -> Rle:
    """The decoder's mask resized to the box of an image of `size`, width and height.

    As in big_vision's evaluator: the corners are truncated to integers, the filter is Pillow's
    bilinear one, and pixels above 0 belong to the object. A box thinner than a pixel has an empty
    mask.
    """
    width, height = size
    return rle.encode_mask_parts(_mask_parts(grid_RR, box), size=(height, width))


def _mask_parts(grid_RR: np.ndarray, box: Box) -> abc.Iterator[rle.MaskPart]:
    left, top, right, bottom = map(int, (box.xmin, box.ymin, box.xmax, box.ymax))
    width, height = right - left, bottom - top
    rows = min(max(height, 1), TILE_SIDE)
    columns = min(TILE_PIXELS // rows, TILE_SIDE)
    for y in range(0, height, rows):
        down = _filter(height, range(y, min(y + rows, height)))
        for x in range(0, width, columns):
            across = _filter(width, range(x, min(x + columns, width)))
            narrow = (across @ grid_RR.T).astype(np.float32)  # as Pillow rounds between its passes
            yield (narrow @ down.T > 0).T, left + x, top + y


def _filter(size: int, columns: range) -> np.ndarray:
    """The bilinear weights of the decoder's pixels for these columns of a side of `size` pixels."""
    scale = RESOLUTION / size
    centres = (np.arange(columns.start, columns.stop) + 0.5) * scale
    distances = np.abs(np.arange(RESOLUTION) + 0.5 - centres[:, None]) / max(scale, 1.0)
    weights = np.clip(1 - distances, 0, None)
    filtered: np.ndarray = weights / weights.sum(axis=1, keepdims=True)
    return filtered
