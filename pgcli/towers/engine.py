"""The embedding engine: images and texts in, vectors out.

B rows · C channels · R resolution · T tokens · E embedding, or classes of a classifier
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pgcli.checkpoints.model_description import ModelDescription
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.select import Stopwatch, TimeMark
from pgcli.engine.image_cache import ImageCacheStats
from pgcli.engine.memory import BatchLimits, OutOfMemory, run_in_chunks, run_or_free
from pgcli.errors import InvalidCheckpoint, NoUsableDevice, PgcliError, UsageError
from pgcli.model.siglip import ImageClassifier, normalize_pixels
from pgcli.model.transfer import to_device
from pgcli.model.two_towers import TwoTowers
from pgcli.records import DecodedImage
from pgcli.towers.texts import TextProcessor

Stream = Iterable[tuple[int, DecodedImage]]


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image's vector: its embedding of length 1, or a classifier's logits.

    `vision_ms` is the image's share of its `batch`'s time. The vector is None if memory does not
    suffice for this image alone.
    """

    image: DecodedImage
    vector: np.ndarray | None
    vision_ms: float | None
    batch: int


@dataclass(frozen=True, slots=True)
class InFlightBatch:
    """A batch whose vectors are computed, or in progress on a GPU."""

    rows: Sequence[tuple[int, DecodedImage]]
    vector_BE: Tensor
    start: TimeMark
    end: TimeMark


class EmbeddingEngine:
    """A loaded model with its image and text preprocessing.

    `kind` is "two_towers", "vision_tower", "classifier" or "paligemma"; `labels` are the classes of
    a classifier. `batch_limits` are the batch sizes after OOM errors; they persist from one call to
    the next.
    """

    def __init__(
        self,
        model: TwoTowers | ImageClassifier,
        description: ModelDescription,
        preprocessing: Preprocessing,
        texts: TextProcessor | None,
        *,
        label: str,
        batch_size: int,
    ):
        self.model = model
        self.kind = description.kind
        self.labels = description.labels
        self.label = label
        self.batch_size = batch_size
        self.batch_limits = BatchLimits()
        self.image_stats = ImageCacheStats()
        self.spec = preprocessing.image_spec(description.vision.resolution)
        weight = model.vision.post_layernorm.weight
        self._device, self._dtype = weight.device, weight.dtype
        self._watch = Stopwatch(self._device)
        self._mean = torch.tensor(preprocessing.mean, device=self._device)
        self._std = torch.tensor(preprocessing.std, device=self._device)
        self._texts = texts

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def dtype(self) -> str:
        return str(self._dtype).removeprefix("torch.")

    @property
    def embedding_dim(self) -> int:
        """The number of values of a vector."""
        if isinstance(self.model, TwoTowers):
            return self.model.config.embedding_dim
        return len(self.labels)

    @property
    def adds_eos(self) -> bool:
        """Whether the checkpoint's own tokenizer also ends texts with the end token."""
        return self._texts is None or self._texts.format.adds_eos

    @property
    def has_sigmoid(self) -> bool:
        """Whether scores are the sigmoids of `scores`, as for SigLIP."""
        if not isinstance(self.model, TwoTowers) or self.model.logit_bias is None:
            return False
        return self.model.config.has_sigmoid

    def encode(
        self, stream: Stream, *, should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, EncodedImage]]:
        """Each image's vector with its row index, in the order of the stream.

        On OOM batches are halved and their images encoded again; an image that does not fit even
        alone has no vector, and NoUsableDevice is raised if the first images all have none. Once
        `should_stop` returns True, no further batch starts.
        """
        in_flight: deque[InFlightBatch] = deque()
        ahead = 1 if self._device.type == "cuda" else 0  # a GPU computes while images are decoded
        for rows in self._batches(stream):
            if should_stop():
                break
            for batch in self._launch(rows):
                if isinstance(batch, InFlightBatch):
                    in_flight.append(batch)
                    if len(in_flight) > ahead:
                        yield from self._finish(in_flight.popleft())
                else:
                    while in_flight:
                        yield from self._finish(in_flight.popleft())
                    row_index, image = batch
                    self.batch_limits.count_row(is_lost=True)
                    yield row_index, EncodedImage(image, None, None, 1)
        while in_flight:
            yield from self._finish(in_flight.popleft())

    def encode_texts(self, texts: Sequence[str], *, raw: bool = False) -> np.ndarray:
        """The embeddings (B, E) of texts, in float32; each distinct text is encoded once.

        With `raw`, texts keep their case and punctuation. Raises UsageError if the
        model has no text tower, InvalidCheckpoint if it has no tokenizer, and NoUsableDevice if
        memory does not suffice for one text.
        """
        if self._texts is None or not isinstance(self.model, TwoTowers):
            raise self._no_texts()
        distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        token_BT = self._texts(distinct, raw=raw)
        rows = [
            vector
            for start in range(0, len(token_BT), self.batch_size)
            for vector in run_in_chunks(
                self._encode_tokens, [*token_BT[start : start + self.batch_size]]
            )
        ]
        encoded = [row for row in rows if row is not None]
        if len(encoded) < len(rows):
            raise NoUsableDevice(
                "the device has no memory left for even one text",
                hint="free memory, use <--dtype bfloat16>, or choose another <--device=>",
            )
        if not encoded:
            return np.zeros((0, self.model.config.embedding_dim), np.float32)
        return torch.stack(encoded)[[distinct[text] for text in texts]].numpy()

    def truncated(self, texts: Sequence[str], *, raw: bool = False) -> frozenset[str]:
        """The texts that `encode_texts` truncates."""
        return frozenset() if self._texts is None else self._texts.truncated(texts, raw=raw)

    @torch.inference_mode()
    def scores(self, cosine: np.ndarray) -> np.ndarray:
        """Scaled cosines, with a bias if the model has one, for a sigmoid or a softmax."""
        if not isinstance(self.model, TwoTowers) or self.model.logit_scale is None:
            raise self._no_texts()
        values = torch.as_tensor(cosine, dtype=torch.float32, device=self._device)
        scaled: np.ndarray = self.model.logits(values).float().cpu().numpy()
        return scaled

    def _no_texts(self) -> PgcliError:
        if self.kind == "two_towers":
            return InvalidCheckpoint(
                f"{self.label} has no tokenizer.json, which is needed for texts",
                hint="save the processor again with transformers: save_pretrained writes it",
            )
        return UsageError(
            f"{self.label} has no text tower",
            hint="use SigLIP, SigLIP 2 or CLIP with both towers",
        )

    def _batches(self, stream: Stream) -> Iterator[list[tuple[int, DecodedImage]]]:
        rows: list[tuple[int, DecodedImage]] = []
        for row in stream:
            rows.append(row)
            if len(rows) >= min(self.batch_size, self.batch_limits.rows):
                yield rows
                rows = []
        if rows:
            yield rows

    def _launch(
        self, rows: Sequence[tuple[int, DecodedImage]]
    ) -> Iterator[InFlightBatch | tuple[int, DecodedImage]]:
        """The batch, or smaller batches after OOM; a row that does not fit alone has no vector."""
        remaining = list(rows)
        while remaining:
            batch = remaining[: self.batch_limits.rows]
            try:
                launched = run_or_free(partial(self._encode_rows, batch))
            except OutOfMemory:
                if len(batch) > 1:
                    self.batch_limits.shrink(len(batch))
                    continue
                yield batch[0]
            else:
                yield launched
            del remaining[: len(batch)]

    @torch.inference_mode()
    def _encode_rows(self, rows: Sequence[tuple[int, DecodedImage]]) -> InFlightBatch:
        start = self._watch.mark()
        images = [torch.from_numpy(image.pixels) for _, image in rows if image.pixels is not None]
        pixels_BRRC = to_device(torch.stack(images), self._device)
        pixels_BCRR = normalize_pixels(pixels_BRRC, self._mean, self._std, self._dtype)
        vector_BE = self._encode_pixels(pixels_BCRR).float()
        return InFlightBatch(rows, vector_BE, start, self._watch.mark())

    def _encode_pixels(self, pixels_BCRR: Tensor) -> Tensor:
        if isinstance(self.model, TwoTowers):
            return self.model.encode_images(pixels_BCRR)
        logits_BE: Tensor = self.model(pixels_BCRR)
        return logits_BE

    def _finish(self, batch: InFlightBatch) -> Iterator[tuple[int, EncodedImage]]:
        vectors = batch.vector_BE.cpu().numpy()
        each_ms = self._watch.between(batch.start, batch.end) / len(batch.rows)
        for (row_index, image), vector in zip(batch.rows, vectors, strict=True):
            self.batch_limits.count_row(is_lost=False)
            yield row_index, EncodedImage(image, vector, each_ms, len(batch.rows))

    @torch.inference_mode()
    def _encode_tokens(self, texts: Sequence[Tensor]) -> Sequence[Tensor]:
        assert isinstance(self.model, TwoTowers)
        return [*self.model.encode_texts(torch.stack([*texts]).to(self._device)).float().cpu()]
