"""Times the stages of transformers' generation with hooks.

B rows · S slots of image and prompt · V vocabulary
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pgcli.bench.roofline import Stages
from pgcli.device.stopwatch import Stopwatch


class StageTimer:
    """Records the time of each stage, and masks tokens that pgcli never generates.

    It is a logits processor, which transformers calls after every pass; the first call ends the
    prefill. Masking the logits takes a thousandth of a pass. The input of the LM head is made
    contiguous, so that transformers runs as fast as it can.
    """

    def __init__(self, model: Any, device: torch.device, vocabulary: int, image_token: int):
        self._stopwatch = Stopwatch(device)
        self._vocabulary, self._image_token = vocabulary, image_token
        self._batches: list[list[Any]] = []
        towers = model.model
        self._hooks = [
            # for non-contiguous rows PyTorch copies the head's weights for each row, which on a CPU
            # takes five times as long as everything else
            model.lm_head.register_forward_pre_hook(lambda _, args: (args[0].contiguous(),)),
            towers.vision_tower.register_forward_pre_hook(lambda *_: self._mark()),
            towers.multi_modal_projector.register_forward_hook(lambda *_: self._mark()),
        ]

    def __enter__(self) -> StageTimer:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def __call__(self, token_BS: Tensor, score_BV: Tensor) -> Tensor:
        if len(self._batches[-1]) == 3:
            self._mark()
        score_BV[:, self._vocabulary :] = -torch.inf
        if self._image_token < self._vocabulary:
            score_BV[:, self._image_token] = -torch.inf
        return score_BV

    def start_batch(self) -> None:
        self._batches.append([])
        self._mark()

    def end_batch(self) -> None:
        self._mark()

    def stages(self) -> Stages:
        """The seconds of all batches; the time before the vision tower counts as prefill."""
        between = self._stopwatch.between
        vision = prefill = decode = 0.0
        for start, vision_start, vision_end, prefill_end, end in self._batches:
            vision += between(vision_start, vision_end) / 1000
            prefill += (between(start, vision_start) + between(vision_end, prefill_end)) / 1000
            decode += between(prefill_end, end) / 1000
        return Stages(vision, prefill, decode)

    def _mark(self) -> None:
        self._batches[-1].append(self._stopwatch.mark())
