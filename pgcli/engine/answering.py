"""Groups of requests -> their rows: generated while others join, or picked among candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pgcli.engine.batches import Request
from pgcli.engine.choices import score
from pgcli.engine.exhaustion import memory_named
from pgcli.engine.features import Features
from pgcli.engine.generate import Growing, Limits, Running
from pgcli.engine.masks import masks_of_rows
from pgcli.engine.rows import generated, picked
from pgcli.engine.tokens import Vocabulary
from pgcli.engine.trial import Trial
from pgcli.model.masks import MaskDecoder
from pgcli.model.paligemma import PaliGemma
from pgcli.records import Answer, Mask, Picture, Piece

#: The row of a picture and a prompt before it is answered.
Blank = Callable[[Picture, str], Answer]
Placed = tuple[int, Answer]
SMALLER = "--batch-size with a smaller number"


def looked_at(
    group: Sequence[Request], features: Features, blank: Blank
) -> tuple[Tensor, list[Answer]]:
    """The group's pictures as the decoder reads them (B, P, D), and its rows before an answer."""
    patch_BPD, vision_ms = features.of(group)
    return patch_BPD, [
        replace(blank(one.picture, one.prompt), vision_ms=share, batch=len(group))
        for one, share in zip(group, vision_ms, strict=True)
    ]


class Generating:
    """Answers that grow token by token; a row that ends makes room for one that waits."""

    def __init__(
        self,
        running: Running,
        features: Features,
        blank: Blank,
        vocabulary: Vocabulary,
        mask_decoder: MaskDecoder | None,
        *,
        trial: Trial | None = None,
    ):
        self._running = running
        self._looked_at = partial(looked_at, features=features, blank=blank)
        self._vocabulary = vocabulary
        self._mask_decoder = mask_decoder
        self._trial = trial
        self._open: dict[Growing, Placed] = {}

    def answers(self, group: Sequence[Request]) -> Iterator[Placed]:
        """Have the group join; the rows that end before it can, and those that end at once."""
        while self._running.free < len(group):
            yield from self._step()
        yield from self._join(group)

    def rest(self) -> Iterator[Placed]:
        """The rows that are still on their way."""
        while self._running.rows:
            yield from self._step()

    @torch.inference_mode()
    def _join(self, group: Sequence[Request]) -> list[Placed]:
        with memory_named(f"{len(group)} more rows", SMALLER):
            patch_BPD, rows = self._looked_at(group)
            places = [one.place for one in group]
            keys = [f"{one.picture.item.index} {one.prompt}" for one in group]
            lengths = None if self._trial is None else self._trial.lengths_at(places)
            begun = self._running.begun(keys, lengths)
            self._open |= zip(begun, zip(places, rows, strict=True), strict=True)
            return self._told(self._running.join(patch_BPD, [one.ids for one in group], begun))

    @torch.inference_mode()
    def _step(self) -> list[Placed]:
        with memory_named(f"{len(self._running.rows)} rows at once", SMALLER):
            return self._told(self._running.step())

    def _told(self, ended: Sequence[Growing]) -> list[Placed]:
        """The rows that ended, with their answers; their masks are decoded together."""
        if not ended:
            return []
        pieces = [self._pieces(row) for row in ended]
        places, rows = zip(*(self._open.pop(row) for row in ended), strict=True)
        if self._trial is not None:
            told = (tuple(row.tokens) for row in ended)
            self._trial.tokens |= zip(places, told, strict=True)
        masks: Sequence[tuple[Mask | None, ...] | None] = [None] * len(rows)
        if rows[0].task == "segment":
            sizes = [(row.width or 0, row.height or 0) for row in rows]
            masks = masks_of_rows(zip(pieces, sizes, strict=True), self._mask_decoder)
        return list(zip(places, map(generated, rows, ended, pieces, masks), strict=True))

    def _pieces(self, row: Growing) -> list[Piece]:
        words = len(row.tokens) - row.stopped
        probabilities = [math.exp(logprob) for logprob in row.logprobs[:words]]
        return self._vocabulary.pieces(row.tokens[:words], probabilities)


class Picking:
    """Answers picked among candidates, a group at a time."""

    def __init__(self, model: PaliGemma, features: Features, blank: Blank, limits: Limits):
        self._score = partial(score, model, limits=limits)
        self._looked_at = partial(looked_at, features=features, blank=blank)

    @torch.inference_mode()
    def answers(self, group: Sequence[Request]) -> list[Placed]:
        """The group's rows."""
        with memory_named(f"a batch of {len(group)}", SMALLER):
            patch_BPD, rows = self._looked_at(group)
            prompts = [one.ids for one in group]
            scored = self._score(patch_BPD, prompts, [one.candidates for one in group])
        places = [one.place for one in group]
        return list(zip(places, map(picked, rows, scored), strict=True))

    def rest(self) -> list[Placed]:
        """Nothing: every group is answered when it comes."""
        return []
