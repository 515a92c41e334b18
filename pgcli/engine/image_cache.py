"""Cache image features, so that an image is encoded and copied once for all its prompts.

B rows · C channels · R resolution · P patches · D width
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.select import Stopwatch, TimedPass
from pgcli.engine.sequence import Sequence
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalize_pixels
from pgcli.model.transfer import empty_on_host, reads_pinned, to_device

MAX_BYTES = 256 * 2**20


@dataclass(eq=False, slots=True)
class ImageCacheStats:
    """The prompts prefilled, and the images encoded for them."""

    prompts: int = 0
    misses: int = 0

    @property
    def hits(self) -> int:
        """The prompts for which no image had to be encoded."""
        return max(0, self.prompts - self.misses)


class ImageFeatureCache:
    """The features of images that have further prompts to prefill.

    Beyond `max_bytes` the least recently used image is evicted, and encoded again for its next
    prompt. For a GPU, `stage` copies the pixels of an image to pinned memory before it is encoded.
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
        self._watch = Stopwatch(self._device)
        self._counts: Counter[int] = Counter()
        self._features: dict[int, Tensor] = {}
        self._staged: dict[int, Tensor] | None = {} if reads_pinned(self._device) else None

    def stage(self, sequence: Sequence) -> None:
        """Copy a new sequence's image to pinned memory, while the device computes.

        The memory is reused only after the copies that read it have finished.
        """
        key, image = sequence.image_key, sequence.image
        if self._staged is None or image is None or image.pixels is None:
            return
        if key not in self._features and key not in self._staged:
            staged = empty_on_host(image.pixels.shape, torch.uint8, pinned=True)
            # NumPy copies ten times as fast as PyTorch, which would wake a thread on each core
            staged.numpy()[...] = image.pixels
            self._staged[key] = staged

    def get(self, batch: list[Sequence]) -> Tensor:
        """The image features of a batch (B, P, D); their time is added to the batch's sequences.

        The features stay available until `release`, because memory may run out before the prefill.
        """
        for sequence in batch:
            self._counts.setdefault(sequence.image_key, sequence.image_uses)
        features = self._encoded(batch)
        patch_BPD = torch.stack([features[sequence.image_key] for sequence in batch])
        self._keep(batch, features)
        return patch_BPD

    def release(self, batch: Iterable[Sequence]) -> None:
        """Count these sequences as prefilled; the last one of an image drops its features."""
        for sequence in batch:
            key = sequence.image_key
            self._stats.prompts += 1
            self._counts.setdefault(key, sequence.image_uses)
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
                self._features.pop(key, None)

    def retain(self, batch: Iterable[Sequence]) -> None:
        """Undo `release` for these sequences: they will be prefilled again."""
        for sequence in batch:
            self._stats.prompts -= 1
            self._counts[sequence.image_key] += 1

    def clear(self) -> None:
        """Free the memory of all features."""
        self._features.clear()

    def forget(self) -> None:
        """Forget all images: the keys of the next ones may be the same."""
        self._counts.clear()
        self._features.clear()
        if self._staged is not None:
            self._staged.clear()

    def _encoded(self, batch: list[Sequence]) -> dict[int, Tensor]:
        """The features of each image (P, D) by its key, from the cache or encoded now."""
        missing = {
            sequence.image_key: sequence
            for sequence in batch
            if sequence.image_key not in self._features
            and sequence.image is not None
            and sequence.image.pixels is not None
        }
        encoded: dict[int, Tensor] = {}
        if missing:
            pixels_BRRC = self._pixels([*missing.values()])
            pixels_BCRR = normalize_pixels(pixels_BRRC, self._mean, self._std, self._dtype)
            start = self._watch.mark()
            encoded = dict(zip(missing, self._model.encode(pixels_BCRR), strict=True))
            encode_pass = TimedPass(self._watch, start, self._watch.mark(), len(batch))
            for sequence in batch:
                sequence.encode_passes.append(encode_pass)
            self._stats.misses += len(missing)
        keys = dict.fromkeys(sequence.image_key for sequence in batch)
        return {key: encoded[key] if key in encoded else self._features[key] for key in keys}

    def _pixels(self, sequences: list[Sequence]) -> Tensor:
        """The images of the sequences (B, R, R, C) on the device."""
        if self._staged is None:
            images = [sequence.image for sequence in sequences]
            pixels = [torch.as_tensor(image.pixels) for image in images if image is not None]
            return to_device(torch.stack(pixels), self._device)
        for sequence in sequences:
            self.stage(sequence)  # again, if it was encoded before
        staged = [self._staged.pop(sequence.image_key) for sequence in sequences]
        pixels_BRRC = staged[0].new_empty(len(staged), *staged[0].shape, device=self._device)
        for row, image in zip(pixels_BRRC, staged, strict=True):
            row.copy_(image, non_blocking=True)
        return pixels_BRRC

    def _keep(self, batch: list[Sequence], features: dict[int, Tensor]) -> None:
        """Keep the features of images with prompts outside the batch, up to `max_bytes`."""
        in_batch = Counter(sequence.image_key for sequence in batch)
        for key, patch_PD in features.items():
            if self._counts[key] == in_batch[key]:
                continue
            kept = self._features.pop(key, None)
            # a view would keep the features of the whole batch alive
            self._features[key] = patch_PD.clone() if kept is None else kept
            while len(self._features) * patch_PD.nbytes > self._max_bytes:
                del self._features[next(iter(self._features))]
