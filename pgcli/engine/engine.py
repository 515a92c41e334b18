"""The engine: a stream of pictures in, answers out as each ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from pgcli.checkpoints.files import Preprocessing
from pgcli.engine.admission import Admission
from pgcli.engine.batches import Request, Waiting
from pgcli.engine.choices import Scored, score
from pgcli.engine.exhaustion import memory_named
from pgcli.engine.features import Features
from pgcli.engine.generate import GREEDY, Growing, Limits, Sampling, generate
from pgcli.engine.grammar import Grammar
from pgcli.engine.masks import masks_of_rows
from pgcli.engine.rows import generated, picked
from pgcli.engine.tokens import Vocabulary
from pgcli.engine.trial import Trial
from pgcli.images import Square
from pgcli.model.masks import MaskDecoder
from pgcli.model.paligemma import PaliGemma
from pgcli.records import Answer, Mask, Picture, Piece, Task, unanswered
from pgcli.tasks import Question, insist_on_room

WINDOW_BATCHES = 4  # so many batches' requests are looked over for prompts of equal length
WINDOW_BYTES = 256 * 2**20


class Engine:
    """A loaded model with what it takes to be asked: its vocabulary and its way with pictures."""

    def __init__(
        self,
        model: PaliGemma,
        vocabulary: Vocabulary,
        preprocessing: Preprocessing,
        *,
        label: str,
        batch_size: int,
        mask_decoder: MaskDecoder | None = None,
    ):
        self.model = model
        self.vocabulary = vocabulary
        self.label = label
        self.batch_size = batch_size
        self.square = Square(model.config.vision.resolution, preprocessing.resample)
        self._device = model.projector.weight.device
        self._dtype = model.projector.weight.dtype
        self._preprocessing = preprocessing
        self._mask_decoder = mask_decoder

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def dtype(self) -> str:
        return str(self._dtype).removeprefix("torch.")

    def ask(
        self,
        stream: Iterable[tuple[int, Picture]],
        question: Question,
        sampling: Sampling = GREEDY,
        trial: Trial | None = None,
    ) -> Iterator[tuple[int, Answer]]:
        """The answers to each picture's prompts, with their places, in the order in which they end.

        In comes each picture with the place of its first row; its k-th prompt is answered at
        place + k. No more pictures are taken than are looked over for batches of equal length. A
        prompt too long for the model is an error row. A picture is encoded once for all its
        prompts. A `trial` is a measurement's, which sets lengths and is told tokens.
        """
        forced = trial.lengths if trial else ()
        if forced:
            question = replace(question, max_new_tokens=max(forced))
        limits = self._limits(question, forced=bool(forced))
        admission = Admission(
            self.vocabulary,
            self.model.config,
            task=question.task,
            max_new_tokens=limits.max_new_tokens,
            model=self.label,
        )
        grammar = self._grammar(question) if question.strict else None
        reply = partial(
            self._reply,
            features=Features(self.model, self._preprocessing),
            task=question.task,
            generate=partial(generate, limits=limits, sampling=sampling, grammar=grammar),
            score=partial(score, limits=limits),
            trial=trial,
        )
        # candidates side by side take several times the memory of an answer that grows
        size = max(1, self.batch_size // 4) if question.has_choices else self.batch_size
        waiting = Waiting(size=size, window=self._window())
        for place, picture in stream:
            requests, refused = admission.admit(place, picture)
            yield from refused
            for request in requests:
                waiting.add(request)
                while waiting.ready():
                    yield from reply(waiting.take())
        while waiting:
            yield from reply(waiting.take())

    def _window(self) -> int:
        """How many requests may wait: a few batches' worth, and no more than their bytes allow."""
        fitting = WINDOW_BYTES // (3 * self.square.resolution**2)
        return max(self.batch_size, min(WINDOW_BATCHES * self.batch_size, fitting))

    def _limits(self, question: Question, *, forced: bool) -> Limits:
        """Where answers end, whatever the model says if `forced`.

        Raises UsageError where they would leave no room for a prompt.
        """
        config = self.model.config
        insist_on_room(question, config.most_new_tokens)
        return Limits(
            max_new_tokens=question.max_new_tokens,
            stop_tokens=frozenset() if forced else frozenset(config.stop_tokens),
            vocabulary=self.vocabulary.size,
            image_token=config.image_token,
        )

    def _grammar(self, question: Question) -> Grammar:
        stop_tokens = self.model.config.stop_tokens
        return Grammar(self.vocabulary, question.objects, stop_tokens, device=self._device)

    @torch.inference_mode()
    def _reply(
        self,
        batch: list[Request],
        features: Features,
        task: Task,
        generate: Callable[..., list[Growing]],
        score: Callable[..., list[Scored]],
        trial: Trial | None,
    ) -> list[tuple[int, Answer]]:
        """The rows of a batch, whose answers are all generated or all picked."""
        prompts = [request.ids for request in batch]
        with memory_named(f"a batch of {len(batch)}", "--batch-size with a smaller number"):
            patch_BPD, vision_ms = features.of(batch)
            begun = partial(unanswered, task=task, model=self.label)
            rows = [
                replace(begun(one.picture, one.prompt), vision_ms=share, batch=len(batch))
                for one, share in zip(batch, vision_ms, strict=True)
            ]
            if batch[0].candidates:
                choices = [request.candidates for request in batch]
                scored = score(self.model, patch_BPD, prompts, choices)
                answers = list(map(picked, rows, scored))
            else:
                keys = [f"{request.picture.item.index} {request.prompt}" for request in batch]
                places = [request.place for request in batch]
                lengths = None if trial is None else trial.lengths_at(places)
                told = generate(self.model, patch_BPD, prompts, keys, lengths=lengths)
                if trial is not None:
                    trial.tokens |= {n: tuple(r.tokens) for n, r in zip(places, told, strict=True)}
                answers = self._told(rows, told)
        return [(request.place, row) for request, row in zip(batch, answers, strict=True)]

    def _told(self, rows: Sequence[Answer], told: Sequence[Growing]) -> list[Answer]:
        """The rows with what was generated for them; the masks of a batch are decoded together."""
        pieces = [self._pieces(row) for row in told]
        masks: Sequence[tuple[Mask | None, ...] | None] = [None] * len(rows)
        if rows[0].task == "segment":
            sizes = [(row.width or 0, row.height or 0) for row in rows]
            masks = masks_of_rows(zip(pieces, sizes, strict=True), self._mask_decoder)
        return list(map(generated, rows, told, pieces, masks))

    def _pieces(self, row: Growing) -> list[Piece]:
        words = len(row.tokens) - row.stopped
        probabilities = [math.exp(logprob) for logprob in row.logprobs[:words]]
        return self.vocabulary.pieces(row.tokens[:words], probabilities)
