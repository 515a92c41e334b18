"""Groups of requests -> their rows, each picked among its candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from pgcli.engine.batch_limits import BatchLimits, run_in_chunks
from pgcli.engine.batches import Request
from pgcli.engine.choices import score
from pgcli.engine.image_cache import ImageFeatureCache
from pgcli.engine.output import Blank, Placed, oom_answer, picked
from pgcli.engine.sequence import Limits
from pgcli.model.paligemma import PaliGemma
from pgcli.records import Answer


class Picking:
    """Answers picked among candidates, a group at a time."""

    def __init__(
        self,
        model: PaliGemma,
        features: ImageFeatureCache,
        blank: Blank,
        limits: Limits,
        headroom: BatchLimits,
    ):
        self._score = partial(score, model, limits=limits)
        self._features = features
        self._blank = blank
        self._headroom = headroom

    @torch.inference_mode()
    def answers(self, group: Sequence[Request]) -> Iterator[Placed]:
        """The group's rows."""
        found = run_in_chunks(self._rows, group, self._headroom.scored, self._features.let_go)
        for request, row in found:
            self._features.read([request])
            if row is None:
                self._headroom.lose()
                row = oom_answer(self._blank(request.picture, request.prompt))
            else:
                self._headroom.has_answered = True
            yield request.place, row

    def rest(self) -> list[Placed]:
        """Nothing: every group is answered when it comes."""
        return []

    def _rows(self, group: Sequence[Request]) -> list[Answer]:
        patch_BPD, vision_ms = self._features.of(group)
        prompts = [one.ids for one in group]
        scored = self._score(patch_BPD, prompts, [one.candidates for one in group])
        return [
            replace(
                picked(self._blank(one.picture, one.prompt), of_row),
                vision_ms=share,
                batch=len(group),
            )
            for one, of_row, share in zip(group, scored, vision_ms, strict=True)
        ]
