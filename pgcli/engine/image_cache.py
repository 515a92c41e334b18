"""Pictures as the decoder reads them, each encoded once and kept until the last of its prompts.

B rows · C channels · R resolution · P patches · D width
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.select import Stopwatch
from pgcli.engine.batches import Request
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalize_pixels

MOST_BYTES = 256 * 2**20  # of pictures that wait for their other prompts, on the device


@dataclass(eq=False, slots=True)
class Reuse:
    """How often the eye was spared: prompts read, and pictures that it looked at for them."""

    prompts: int = 0
    looks: int = 0
    is_possible: bool = False  # some picture has several prompts

    @property
    def spared(self) -> int:
        """Prompts for which the eye did not look again."""
        return max(0, self.prompts - self.looks)


@dataclass(slots=True)
class RefCount:
    """How many of a picture's prompts are still to be read, and the eye's time for them, in ms."""

    prompts: int
    ms: float = 0.0


class ImageFeatureCache:
    """The eye's memory: it looks at a picture when the first of its prompts comes up.

    What it keeps is bounded: beyond `most_bytes` the picture that was used longest ago is let go,
    and looked at again when its next prompt comes up.
    """

    def __init__(
        self,
        model: PaliGemma,
        preprocessing: Preprocessing,
        reuse: Reuse,
        *,
        most_bytes: int = MOST_BYTES,
    ):
        weight = model.projector.weight
        self._model = model
        self._device, self._dtype = weight.device, weight.dtype
        self._mean = torch.tensor(preprocessing.mean, device=self._device)
        self._std = torch.tensor(preprocessing.std, device=self._device)
        self._reuse = reuse
        self._most_bytes = most_bytes
        self._unread: dict[int, RefCount] = {}
        self._kept: dict[int, Tensor] = {}  # from the one used longest ago to the latest

    def of(self, batch: Sequence[Request]) -> tuple[Tensor, list[float]]:
        """The pictures of a batch (B, P, D), and each row's share of the eye's time, in ms.

        The prompts stay unread until `read` says otherwise, as memory may run out before they are.
        """
        for request in batch:
            self._unread.setdefault(request.picture_key, RefCount(request.shares))
            self._reuse.is_possible |= request.shares > 1
        seen = self._seen(batch)
        patch_BPD = torch.stack([seen[request.picture_key] for request in batch])
        self._keep(batch, seen)
        unread = [self._unread[request.picture_key] for request in batch]
        return patch_BPD, [one.ms / one.prompts for one in unread]

    def read(self, batch: Sequence[Request]) -> None:
        """Count these prompts as read; the last one of a picture lets it go."""
        self._reuse.prompts += len(batch)
        for request in batch:
            unread = self._unread[request.picture_key]
            unread.ms -= unread.ms / unread.prompts
            unread.prompts -= 1
            if not unread.prompts:
                del self._unread[request.picture_key]
                self._kept.pop(request.picture_key, None)

    def read_again(self, batch: Sequence[Request]) -> None:
        """Count these prompts, which were read, as unread: their rows start over."""
        self._reuse.prompts -= len(batch)
        for request in batch:
            self._unread.setdefault(request.picture_key, RefCount(0)).prompts += 1

    def let_go(self) -> None:
        """Give back the memory of all that is kept."""
        self._kept.clear()

    def _seen(self, batch: Sequence[Request]) -> dict[int, Tensor]:
        """What the eye sees of each picture (P, D), by its key: kept, or looked at now."""
        new = {one.picture_key: one for one in batch if one.picture_key not in self._kept}
        looked: dict[int, Tensor] = {}
        if new:
            looked = dict(zip(new, self._looked_at(list(new.values())), strict=True))
        keys = dict.fromkeys(one.picture_key for one in batch)
        return {key: looked[key] if key in looked else self._kept[key] for key in keys}

    def _looked_at(self, new: Sequence[Request]) -> Tensor:
        watch = Stopwatch(self._device)
        squares = [torch.from_numpy(request.picture.pixels) for request in new]
        start = watch.mark()
        pixels_BRRC = torch.stack(squares)
        if self._device.type == "cuda":  # from pinned memory a copy goes on by itself
            pixels_BRRC = pixels_BRRC.pin_memory()
        pixels_BRRC = pixels_BRRC.to(self._device, non_blocking=True)
        pixels_BCRR = normalize_pixels(pixels_BRRC, self._mean, self._std, self._dtype)
        patch_BPD = self._model.encode(pixels_BCRR)
        each_ms = watch.between(start, watch.mark()) / len(new)
        for request in new:
            self._unread[request.picture_key].ms += each_ms
        self._reuse.looks += len(new)
        return patch_BPD

    def _keep(self, batch: Sequence[Request], seen: dict[int, Tensor]) -> None:
        """Keep what other prompts than the batch's wait for, as far as there is room."""
        here = Counter(request.picture_key for request in batch)
        for key, patch_PD in seen.items():
            if self._unread[key].prompts == here[key]:
                continue
            kept = self._kept.pop(key, None)
            # a view would keep all pictures that were looked at with it
            self._kept[key] = patch_PD.clone() if kept is None else kept
            while len(self._kept) * patch_PD.nbytes > self._most_bytes:
                del self._kept[next(iter(self._kept))]
