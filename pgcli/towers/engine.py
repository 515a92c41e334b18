"""The embedding engine: loaded from a checkpoint, it makes vectors of images and texts.

B rows · C channels · R resolution · T tokens · E embedding, or classes of a classifier
"""

from __future__ import annotations

import string
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tokenizers
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import (
    ModelDescription,
    image_preprocessing,
    read_description,
)
from pgcli.checkpoints.families.paligemma import VISION_TENSORS
from pgcli.checkpoints.files import total_bytes
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.tokenizer import has_tokenizer, open_text_tokenizer
from pgcli.device.select import Stopwatch, TimeMark, choose_device, choose_dtype, free_bytes
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.image_cache import ImageCacheStats
from pgcli.engine.memory import (
    MOST_ROWS,
    SHARE_OF_FREE,
    SMALLER_MODEL,
    BatchLimits,
    OutOfMemory,
    check_weights_fit,
    encode_bytes,
    memory_named,
    run_in_chunks,
    run_or_free,
)
from pgcli.errors import InvalidCheckpoint, NoUsableDevice, PgcliError, UsageError
from pgcli.model.config import (
    ClassifierConfig,
    PaliGemmaConfig,
    TwoTowersConfig,
    VisionConfig,
)
from pgcli.model.cpu.optimize import optimize_encoders_for_cpu
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import ImageClassifier, TwoTowers, normalize_pixels
from pgcli.model.transfer import to_device
from pgcli.records import DecodedImage

Stream = Iterable[tuple[int, DecodedImage]]
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def open_towers(
    checkpoint: Checkpoint,
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
) -> EmbeddingEngine:
    """An engine for the checkpoint; `batch_size` None is computed from free memory.

    Only the vision tower of a PaliGemma checkpoint is read. Raises InvalidCheckpoint for damaged or
    unsupported files, NoUsableDevice if the device is missing or too small, and UsageError for
    unknown names.
    """
    folder = checkpoint.folder
    description = read_description(folder)
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device, total_bytes(folder))
    config = encoder_config(description)
    preprocessing = image_preprocessing(folder, description)
    # no tokenizer is needed for images
    texts = text_processor(folder, description) if has_tokenizer(folder) else None
    needed = weights.count_parameters(config) * chosen_dtype.itemsize
    check_weights_fit(needed, chosen_dtype, chosen_device)
    name = str(chosen_dtype).removeprefix("torch.")
    with memory_named(f"the weights in {name}", SMALLER_MODEL):
        model = read_model(folder, description, dtype=chosen_dtype, device=chosen_device)
        optimize_encoders_for_cpu(model)
    if batch_size is None:
        free = free_bytes(chosen_device)
        batch_size = automatic_batch_size(config.vision, chosen_dtype, chosen_device, free)
    return EmbeddingEngine(
        model, description, preprocessing, texts, label=checkpoint.label, batch_size=batch_size
    )


def of_paligemma(engine: InferenceEngine) -> EmbeddingEngine:
    """An engine that embeds images with the vision tower of a loaded PaliGemma."""
    description = ModelDescription("paligemma", engine.model.config, VISION_TENSORS)
    config = encoder_config(description)
    assert isinstance(config, TwoTowersConfig)
    with weights.skip_init():
        towers = TwoTowers(config)
    towers.vision = engine.model.vision
    weight = engine.model.projector.weight
    free = free_bytes(weight.device)
    batch_size = automatic_batch_size(config.vision, weight.dtype, weight.device, free)
    return EmbeddingEngine(
        towers, description, engine.preprocessing, None, label=engine.label, batch_size=batch_size
    )


def encoder_config(description: ModelDescription) -> TwoTowersConfig | ClassifierConfig:
    """The configuration of the image encoder; PaliGemma's vision tower, averaged over patches."""
    config = description.config
    if isinstance(config, PaliGemmaConfig):
        return TwoTowersConfig("mean", config.vision, None, config.vision.width)
    return config


def read_model(
    folder: Path, description: ModelDescription, *, dtype: torch.dtype, device: torch.device
) -> TwoTowers | ImageClassifier:
    """The model with the checkpoint's weights."""
    is_paligemma = description.kind == "paligemma"
    names = VISION_TENSORS if is_paligemma else description.names
    config = encoder_config(description)
    return weights.load_encoder(folder, config, names, dtype=dtype, device=device)


def text_processor(folder: Path, description: ModelDescription) -> TextProcessor | None:
    """The encoder of texts; None for a model without a text tower."""
    config = description.config
    if not isinstance(config, TwoTowersConfig) or config.text is None:
        return None
    tokenizer = open_text_tokenizer(folder, config.text)
    if config.family == "clip":
        clean = as_typed
    else:  # in transformers, SigLIP 1's tokenizer removes underscores, SigLIP 2's nothing
        clean = canonical_text if tokenizer.is_gemma else siglip_text
    format = TextFormat(
        config.text.max_positions,
        tokenizer.bos,
        tokenizer.eos,
        tokenizer.pad,
        clean,
        tokenizer.adds_eos,
    )
    return TextProcessor(tokenizer.tokenizer, format)


def activation_bytes(vision: VisionConfig, dtype: torch.dtype, device: torch.device) -> int:
    """The bytes of one image's activations in the vision tower, with the buffers of kernels."""
    image = encode_bytes(vision, dtype.itemsize)
    return image * 3 // 2 if device.type == "cpu" else image  # CPU kernels allocate half again


def automatic_batch_size(
    vision: VisionConfig, dtype: torch.dtype, device: torch.device, free: int
) -> int:
    """How many images fit into `SHARE_OF_FREE` of the `free` memory, at most `MOST_ROWS`."""
    fitting = int(SHARE_OF_FREE[device.type] * free) // activation_bytes(vision, dtype, device)
    return max(1, min(MOST_ROWS[device.type], fitting))


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image's vector: its embedding of length 1, or a classifier's logits; of a page several.

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
        model: TwoTowers | ImageClassifier | PaliGemma,
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


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The length of a text tower's inputs, and the tokens around a text.

    `clean` is applied to texts first. `adds_eos` says whether the checkpoint's own tokenizer adds
    `eos`; pgcli always does.
    """

    length: int
    bos: int | None
    eos: int
    pad: int
    clean: Callable[[str], str]
    adds_eos: bool = True


class TextProcessor:
    """Encodes texts, always padded on the right to the text tower's full length.

    SigLIP attends to the padding and pools the last position, so both are part of its input.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, format: TextFormat):
        self._tokenizer = tokenizer
        self.format = format
        # a literal <|endoftext|> is text; as a token, it would end the text there
        tokenizer.encode_special_tokens = True

    def __call__(self, texts: Iterable[str], *, raw: bool = False) -> Tensor:
        """The ids (B, T) of texts; longer ones are truncated before their end token.

        With `raw`, texts go to the tokenizer unchanged.
        """
        ids = [self._padded(ids) for ids in self._encode(texts, raw)]
        return torch.tensor(ids, dtype=torch.long).view(-1, self.format.length)

    def truncated(self, texts: Sequence[str], *, raw: bool = False) -> frozenset[str]:
        """The texts that are longer than the text tower's input and so truncated."""
        pairs = zip(texts, self._encode(texts, raw), strict=True)
        return frozenset(text for text, ids in pairs if len(ids) > self._room)

    @property
    def _room(self) -> int:
        """The number of a text's tokens, without the start and end tokens."""
        return self.format.length - (self.format.bos is not None) - 1

    def _encode(self, texts: Iterable[str], raw: bool) -> list[list[int]]:
        wanted = texts if raw else map(self.format.clean, texts)
        encoded = self._tokenizer.encode_batch([*wanted], add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def _padded(self, ids: Sequence[int]) -> list[int]:
        format = self.format
        start = [] if format.bos is None else [format.bos]
        kept = [*start, *ids[: self._room], format.eos]
        return kept + [format.pad] * (format.length - len(kept))


def as_typed(text: str) -> str:
    """The text unchanged: CLIP's tokenizer lower-cases it."""
    return text


def siglip_text(text: str) -> str:
    """Lower case without punctuation and repeated whitespace, as in transformers' SigLIP."""
    return " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def canonical_text(text: str) -> str:
    """`siglip_text` with spaces for underscores, as for SigLIP in big_vision."""
    return siglip_text(text.replace("_", " "))
