"""Cache image features, so that an image is encoded once for all its prompts.

B rows · C channels · R resolution · P patches · D width
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.stopwatch import Mark, Stopwatch
from pgcli.engine.pixel_staging import Images, PixelStager
from pgcli.engine.sequence import Sequence
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalize_pixels

MAX_BYTES = 256 * 2**20  # on the device


@dataclass(eq=False, slots=True)
class ImageCacheStats:
    """The prompts prefilled, and the images encoded for them; alternatives are not counted."""

    prompts: int = 0
    misses: int = 0

    @property
    def hits(self) -> int:
        """The prompts for which no image had to be encoded."""
        return max(0, self.prompts - self.misses)


@dataclass(frozen=True, eq=False)
class EncodePass:
    """A pass of the vision tower over new images."""

    watch: Stopwatch
    start: Mark
    end: Mark

    @cached_property
    def ms(self) -> float:
        """Its time, for which the host waits."""
        return self.watch.between(self.start, self.end)


class VisionTime(dict[EncodePass, float]):
    """The share of each pass that is for an image, or for one of its prompts."""

    @property
    def ms(self) -> float:
        """Their time together, for which the host waits."""
        return sum(share * one.ms for one, share in self.items())

    def times(self, factor: float) -> VisionTime:
        return VisionTime({one: factor * share for one, share in self.items()})


@dataclass(slots=True)
class RefCount:
    """How many prompts of an image are still to be prefilled, and their encoding time."""

    prompts: int
    time: VisionTime


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
        stager: PixelStager | None = None,
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
        self._stager = stager
        self._watch = Stopwatch(self._device)
        self._counts: dict[int, RefCount] = {}
        self._features: dict[int, Tensor] = {}  # from the least to the most recently used

    def get(self, batch: list[Sequence]) -> tuple[Tensor, list[VisionTime]]:
        """The images of a batch (B, P, D), and each sequence's share of the encoding time.

        The features stay available until `release`, as memory may run out before the prefill.
        """
        for sequence in batch:
            self._count(sequence)
        features = self._encoded(batch)
        patch_BPD = torch.stack([features[sequence.image_key] for sequence in batch])
        self._keep(batch, features)
        counts = [self._counts[sequence.image_key] for sequence in batch]
        return patch_BPD, [one.time.times(1 / one.prompts) for one in counts]

    def stage(self, batch: list[Sequence]) -> None:
        """Start to copy the images of a batch that comes next to the device, on a GPU."""
        if self._stager is not None:
            self._stager.stage(pixels_of(self._new(batch)))

    def release(self, batch: Iterable[Sequence]) -> None:
        """Count these sequences as prefilled; the last one of an image drops its features."""
        for sequence in batch:
            self._stats.prompts += not sequence.alternative
            count = self._count(sequence)
            count.time = count.time.times(1 - 1 / count.prompts)
            count.prompts -= 1
            if not count.prompts:
                del self._counts[sequence.image_key]
                self._features.pop(sequence.image_key, None)

    def retain(self, batch: Iterable[Sequence]) -> None:
        """Count these sequences, which were released, as still to be prefilled."""
        for sequence in batch:
            self._stats.prompts -= not sequence.alternative
            self._count(sequence, 0).prompts += 1

    def clear(self) -> None:
        """Free the memory of all features, and of pixels on the device."""
        self._features.clear()
        if self._stager is not None:
            self._stager.clear()

    def forget(self) -> None:
        """Forget all images: the keys of the next ones may be the same."""
        self._counts.clear()
        self._features.clear()
        if self._stager is not None:
            self._stager.forget()

    def _count(self, sequence: Sequence, prompts: int | None = None) -> RefCount:
        prompts = sequence.image_uses if prompts is None else prompts
        return self._counts.setdefault(sequence.image_key, RefCount(prompts, VisionTime()))

    def _new(self, batch: Iterable[Sequence]) -> dict[int, Sequence]:
        """The first sequence of each image whose features are not in the cache, by its key."""
        found: dict[int, Sequence] = {}
        for one in batch:
            if one.image_key not in self._features:
                found.setdefault(one.image_key, one)
        return found

    def _encoded(self, batch: list[Sequence]) -> dict[int, Tensor]:
        """The features of each image (P, D) by its key, from the cache or encoded now."""
        new = self._new(batch)
        encoded: dict[int, Tensor] = {}
        if new:
            encoded = dict(zip(new, self._encode(new), strict=True))
        keys = dict.fromkeys(one.image_key for one in batch)
        return {key: encoded[key] if key in encoded else self._features[key] for key in keys}

    def _encode(self, new: Mapping[int, Sequence]) -> Tensor:
        start = self._watch.mark()
        patch_BPD = self._model.encode(self._normalized(pixels_of(new)))
        encode_pass = EncodePass(self._watch, start, self._watch.mark())
        for key in new:
            self._counts[key].time[encode_pass] = 1 / len(new)
        self._stats.misses += len(new)
        return patch_BPD

    def _normalized(self, images: Images) -> Tensor:
        """The images (B, C, R, R) on the device."""
        if self._stager is not None:
            return self._stager.read(images, self._normalize)
        host = torch.stack([torch.from_numpy(pixels) for pixels in images.values()])
        return self._normalize(host.to(self._device))

    def _normalize(self, pixels_BRRC: Tensor) -> Tensor:
        return normalize_pixels(pixels_BRRC, self._mean, self._std, self._dtype)

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


def pixels_of(sequences: Mapping[int, Sequence]) -> Images:
    """The pixels of sequences' images, by the same keys."""
    found = {key: one.image.pixels for key, one in sequences.items() if one.image is not None}
    return {key: pixels for key, pixels in found.items() if pixels is not None}
