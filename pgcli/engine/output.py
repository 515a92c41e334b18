"""Convert finished sequences to answers."""

from __future__ import annotations

import math
from collections import abc
from dataclasses import replace

from pgcli import parsing
from pgcli.engine.choices import ChoiceOutput
from pgcli.engine.mask_output import masks_of_rows
from pgcli.engine.oom import run_in_chunks
from pgcli.engine.sequence import Sequence
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.mask_decoder import MaskDecoder
from pgcli.records import Answer, Mask, Span, unanswered
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
        width, height = self._size(sequence)
        boxes = parsing.boxes(spans, width=width, height=height)
        if self._question.box_filter:
            kept = self._question.box_filter.kept(boxes)
            boxes = tuple(boxes[index] for index in kept)
            masks = None if masks is None else tuple(masks[index] for index in kept)
        return replace(
            row,
            answer=text_of(spans),
            boxes=boxes,
            tokens=len(sequence.tokens),
            finish=sequence.finish,
            logprob=sum(sequence.logprobs) / len(sequence.logprobs),
            masks=masks,
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


def oom_answer(row: Answer) -> Answer:
    """The error row of a sequence that runs out of memory alone."""
    return replace(
        row,
        error="oom",
        error_message="There is too little memory for this row even alone; --dtype bfloat16, "
        "a smaller model or another --device may do with it.",
    )
