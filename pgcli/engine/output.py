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
from pgcli.records import Alternative, Answer, Mask, Span, TokenLogprob, unanswered
from pgcli.tasks import Question

#: A row's index and the row.
Row = tuple[int, Answer]


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
        self._ended: dict[int, list[Sequence]] = {}  # of rows whose other answers go on

    def answers(self, sequences: abc.Iterable[Sequence]) -> abc.Iterator[Row]:
        """The rows of these sequences, in the given order."""
        ended = list(self._with_alternatives(sequences))
        for sequence, answer in zip(ended, run_in_chunks(self._answers, ended), strict=True):
            yield (
                sequence.row_index,
                oom_answer(self._unanswered(sequence)) if answer is None else answer,
            )

    def _with_alternatives(self, sequences: abc.Iterable[Sequence]) -> abc.Iterator[Sequence]:
        """The sequences, each once all answers of its row have ended, which are added to it."""
        count = 1 + self._question.alternatives
        for sequence in sequences:
            of_row = self._ended.setdefault(sequence.row_index, [])
            of_row.append(sequence)
            if len(of_row) == count:
                del self._ended[sequence.row_index]
                answer, *alternatives = sorted(of_row, key=lambda answer: answer.alternative)
                answer.alternatives = alternatives
                yield answer

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
        row, sequences = self._unanswered(sequence), [sequence, *sequence.alternatives]
        if any(sequence.status == "out_of_memory" for sequence in sequences):
            return oom_answer(row)
        row = replace(
            row,
            vision_ms=sum(sequence.vision_ms for sequence in sequences),
            prefill_ms=sum(sequence.prefill_ms for sequence in sequences),
            decode_ms=sum(sequence.decode_ms for sequence in sequences),
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
            alternatives=self._alternatives(sequence),
            token_logprobs=self._token_logprobs(sequence),
        )

    def _alternatives(self, sequence: Sequence) -> tuple[Alternative, ...] | None:
        """The sampled answers, with the sums of their log-probabilities; None if none is asked."""
        if not self._question.alternatives:
            return None
        return tuple(
            Alternative(text_of(self._spans(alternative)), sum(alternative.logprobs))
            for alternative in sequence.alternatives
        )

    def _token_logprobs(self, sequence: Sequence) -> tuple[TokenLogprob, ...] | None:
        """Each token with its log-probability; None if they are not asked."""
        if not self._question.token_logprobs:
            return None
        texts = map(self._tokenizer.token_text, sequence.tokens)
        return tuple(map(TokenLogprob, texts, sequence.logprobs))

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
