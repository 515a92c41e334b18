"""Pictures as the decoder reads them, each encoded once and kept until the last of its prompts.

B rows · C channels · R resolution · P patches · D width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pgcli.checkpoints.files import Preprocessing
from pgcli.engine.batches import Request
from pgcli.engine.device import Stopwatch
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalise


@dataclass(slots=True)
class Encoded:
    """What the eye saw of a picture, how many prompts still need it, and each one's time."""

    patch_PD: Tensor
    prompts_left: int
    share_ms: float


class Features:
    """The eye's memory: it looks at a picture when the first of its prompts comes up."""

    def __init__(self, model: PaliGemma, preprocessing: Preprocessing):
        weight = model.projector.weight
        self._model = model
        self._device, self._dtype = weight.device, weight.dtype
        self._mean = torch.tensor(preprocessing.mean, device=self._device)
        self._std = torch.tensor(preprocessing.std, device=self._device)
        self._encoded: dict[int, Encoded] = {}

    def of(self, batch: Sequence[Request]) -> tuple[Tensor, list[float]]:
        """The pictures of a batch (B, P, D), and each row's share of the eye's time, in ms.

        The last prompt of a picture lets it go.
        """
        self._look_at_new(batch)
        patch_BPD = torch.stack([self._encoded[request.picture_key].patch_PD for request in batch])
        return patch_BPD, [self._take(request.picture_key) for request in batch]

    def _look_at_new(self, batch: Sequence[Request]) -> None:
        new = {r.picture_key: r for r in batch if r.picture_key not in self._encoded}
        if not new:
            return
        watch = Stopwatch(self._device)
        squares = [torch.from_numpy(request.picture.pixels) for request in new.values()]
        start = watch.mark()
        pixels_BRRC = torch.stack(squares).to(self._device)
        pixels_BCRR = normalise(pixels_BRRC, self._mean, self._std, self._dtype)
        patch_BPD = self._model.encode(pixels_BCRR)
        each_ms = watch.between(start, watch.mark()) / len(new)
        for (key, request), patch_PD in zip(new.items(), patch_BPD, strict=True):
            if request.shares > 1:  # it may wait long, and a view would keep the others with it
                patch_PD = patch_PD.clone()
            self._encoded[key] = Encoded(patch_PD, request.shares, each_ms / request.shares)

    def _take(self, key: int) -> float:
        known = self._encoded[key]
        known.prompts_left -= 1
        if not known.prompts_left:
            del self._encoded[key]
        return known.share_ms
