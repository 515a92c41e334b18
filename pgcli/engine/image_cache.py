"""Cache image features, so that an image is encoded once for all its prompts.

B rows · C channels · R resolution · P patches · D width
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.stopwatch import Stopwatch
from pgcli.device.transfer import to_device
from pgcli.engine.sequence import Sequence
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalize_pixels

MAX_BYTES = 256 * 2**20  # on the device


@dataclass(eq=False, slots=True)
class ImageCacheStats:
    """The prompts prefilled and the images encoded; `is_shared` if an image has several prompts."""

    prompts: int = 0
    misses: int = 0
    is_shared: bool = False

    @property
    def hits(self) -> int:
        """The prompts for which no image had to be encoded."""
        return max(0, self.prompts - self.misses)


@dataclass(slots=True)
class RefCount:
    """How many prompts of an image are still to be prefilled, and their encoding time in ms."""

    prompts: int
    ms: float = 0.0


class ImageFeatureCache:
    """The features of images that have further prompts to prefill.

    Beyond `max_bytes` the least recently used image is evicted; it is encoded again for its next
    prompt.
    """

    def __init__(
        self,
        model: PaliGemma,
        preprocessing: Preprocessing,
        stats: ImageCacheStats,
        *,
        max_bytes: int = MAX_BYTES,
    ):
        weight = model.projector.weight
        self._model = model
        self._device, self._dtype = weight.device, weight.dtype
        self._mean = torch.tensor(preprocessing.mean, device=self._device)
        self._std = torch.tensor(preprocessing.std, device=self._device)
        self._stats = stats
        self._max_bytes = max_bytes
        self._counts: dict[int, RefCount] = {}
        self._features: dict[int, Tensor] = {}  # from the least to the most recently used

    def get(self, batch: list[Sequence]) -> tuple[Tensor, list[float]]:
        """The images of a batch (B, P, D), and each sequence's share of the encoding time, in ms.

        The features stay available until `release`, as memory may run out before the prefill.
        """
        for sequence in batch:
            self._counts.setdefault(sequence.image_key, RefCount(sequence.image_uses))
            self._stats.is_shared |= sequence.image_uses > 1
        features = self._encoded(batch)
        patch_BPD = torch.stack([features[sequence.image_key] for sequence in batch])
        self._keep(batch, features)
        counts = [self._counts[sequence.image_key] for sequence in batch]
        return patch_BPD, [one.ms / one.prompts for one in counts]

    def release(self, batch: Iterable[Sequence]) -> None:
        """Count these sequences as prefilled; the last one of an image drops its features."""
        for sequence in batch:
            self._stats.prompts += 1
            count = self._counts.setdefault(sequence.image_key, RefCount(sequence.image_uses))
            count.ms -= count.ms / count.prompts
            count.prompts -= 1
            if not count.prompts:
                del self._counts[sequence.image_key]
                self._features.pop(sequence.image_key, None)

    def retain(self, batch: Iterable[Sequence]) -> None:
        """Count these sequences, which were released, as still to be prefilled."""
        for sequence in batch:
            self._stats.prompts -= 1
            self._counts.setdefault(sequence.image_key, RefCount(0)).prompts += 1

    def clear(self) -> None:
        """Free the memory of all features."""
        self._features.clear()

    def _encoded(self, batch: list[Sequence]) -> dict[int, Tensor]:
        """The features of each image (P, D) by its key, from the cache or encoded now."""
        new = {one.image_key: one for one in batch if one.image_key not in self._features}
        encoded: dict[int, Tensor] = {}
        if new:
            encoded = dict(zip(new, self._encode(list(new.values())), strict=True))
        keys = dict.fromkeys(one.image_key for one in batch)
        return {key: encoded[key] if key in encoded else self._features[key] for key in keys}

    def _encode(self, new: list[Sequence]) -> Tensor:
        watch = Stopwatch(self._device)
        images = [torch.from_numpy(one.image.pixels) for one in new if one.image is not None]
        start = watch.mark()
        pixels_BRRC = to_device(torch.stack(images), self._device)
        pixels_BCRR = normalize_pixels(pixels_BRRC, self._mean, self._std, self._dtype)
        patch_BPD = self._model.encode(pixels_BCRR)
        each_ms = watch.between(start, watch.mark()) / len(new)
        for sequence in new:
            self._counts[sequence.image_key].ms += each_ms
        self._stats.misses += len(new)
        return patch_BPD

    def _keep(self, batch: list[Sequence], features: dict[int, Tensor]) -> None:
        """Keep the features of images with prompts outside the batch, up to `max_bytes`."""
        in_batch = Counter(sequence.image_key for sequence in batch)
        for key, patch_PD in features.items():
            if self._counts[key].prompts == in_batch[key]:
                continue
            kept = self._features.pop(key, None)
            # a view would keep the features of the whole batch alive
            self._features[key] = patch_PD.clone() if kept is None else kept
            while len(self._features) * patch_PD.nbytes > self._max_bytes:
                del self._features[next(iter(self._features))]
