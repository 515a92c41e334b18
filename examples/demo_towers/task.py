"""What the built-in towers learn: which caption is of which drawing, and which is a copy of which.

B drawings · V drawings that are there twice · R resolution · C channels · N texts · T tokens ·
S meanings of a drawing · D width
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import numpy
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from examples.demo_model.scenes import VALIDATION_SEEDS, Scene, render, scaled_size
from examples.demo_model.task import HALF, load_batches
from examples.demo_towers.augment import augment
from examples.demo_towers.captions import Caption, Meaning, draw_captions, true_meanings
from pgcli.checkpoints.preprocessing import Preprocessing, write_image_processor
from pgcli.checkpoints.save import save_encoder
from pgcli.embedding.texts import TextProcessor
from pgcli.model.siglip import normalize_pixels
from pgcli.model.two_towers import TwoTowers
from pgcli.training.encoders.contrastive import Meanings, sigmoid_contrastive, softmax_contrastive
from pgcli.training.encoders.contrastive_task import NO_MEANING
from pgcli.training.encoders.learned_tokenizer import PAD, write_tokenizer
from pgcli.training.task import Loss, TrainingTask

LONGER_SIDE = (120, 240)  # pixels; the scenes' own sizes are larger and take longer to draw
EVAL_BATCHES = range(4)
COPY_SCALE = 20.0  # of its cosines


class PairBatch(NamedTuple):
    """Drawings, their texts, and which drawing each text is about.

    The first V drawings are there again as `copy_VRRC`, changed by `augment`, and as
    `rearranged_VRRC`, with the same objects in other places: the captions are true of both.
    """

    pixels_BRRC: Tensor
    copy_VRRC: Tensor
    rearranged_VRRC: Tensor
    token_NT: Tensor
    image_N: Tensor
    meanings: Meanings


@dataclass(frozen=True)
class CaptionedScenes(Dataset[PairBatch]):
    """Scenes with consecutive seeds, `batch_size` in a batch, with `captions` texts each."""

    processor: TextProcessor
    seeds: range
    resolution: int
    batch_size: int
    captions: int = 3
    copies: int = 0
    is_augmented: bool = True

    def __len__(self) -> int:
        return len(self.seeds) // self.batch_size

    def __getitem__(self, index: int) -> PairBatch:
        first = index * self.batch_size
        seeds = self.seeds[first : first + self.batch_size]
        scenes = [Scene.from_seed(seed) for seed in seeds]
        rngs = [Random(f"captions {seed}") for seed in seeds]
        pairs = [*zip(scenes, rngs, strict=True)]
        pixels = [self._pixels(scene, rng) for scene, rng in pairs]
        copies = [self._pixels(scene, rng) for scene, rng in pairs[: self.copies]]
        rearranged = [self._pixels(x.rearranged(rng), rng) for x, rng in pairs[: self.copies]]
        texts = [text for x, rng in pairs for text in draw_captions(x, rng, self.captions)]
        image_N = torch.arange(len(scenes)).repeat_interleave(self.captions)
        return PairBatch(
            *map(self._stack, (pixels, copies, rearranged)),
            self.processor([text.text for text in texts], raw=True),
            image_N,
            number_meanings(texts, scenes, image_N),
        )

    def _stack(self, pixels: Sequence[Any]) -> Tensor:
        shape = len(pixels), self.resolution, self.resolution, 3
        return torch.from_numpy(numpy.array(pixels, dtype=numpy.uint8).reshape(shape))

    def _pixels(self, scene: Scene, rng: Random) -> Any:
        image = render(scene, *scaled_size(scene, rng.randint(*LONGER_SIDE)))
        if self.is_augmented:
            image = augment(image, scene.background_rgb, rng)
        side = (self.resolution, self.resolution)
        return numpy.asarray(image.resize(side, Image.Resampling.BICUBIC))


def number_meanings(texts: Sequence[Caption], scenes: Sequence[Scene], image_N: Tensor) -> Meanings:
    """The meanings of the texts, and for each text those that are true of its drawing."""
    number: dict[Meaning, int] = {}
    for text in texts:
        number.setdefault(text.meaning, len(number))
    known = [
        [number[meaning] for meaning in true_meanings(scene) if meaning in number]
        for scene in scenes
    ]
    longest = max(map(len, known))
    padded = [numbers + [NO_MEANING] * (longest - len(numbers)) for numbers in known]
    text_N = torch.tensor([number[text.meaning] for text in texts])
    return Meanings(text_N, torch.tensor(padded)[image_N])


@dataclass
class CaptionedScenesTask(TrainingTask):
    """The contrastive loss of pairs, and beside it with `copy_weight` that of finding copies."""

    model: TwoTowers
    tokenizer: Tokenizer
    training: CaptionedScenes
    loss_name: Literal["sigmoid", "softmax"]
    copy_weight: float = 0.5
    workers: int = 0

    def batches(self, first: int, stop: int) -> Generator[PairBatch]:
        yield from load_batches(self.training, range(first, stop), workers=self.workers)

    def loss(self, batch: PairBatch) -> Loss:
        """The loss of both; `pair_loss` and `copy_loss` are those of each."""
        image_BD, text_ND = self._encode(batch)
        rows = len(image_BD)
        pairs = self._loss(image_BD[batch.image_N], text_ND, batch)
        copies = self._copy_loss(image_BD, batch) if len(batch.copy_VRRC) else torch.zeros(())
        sums = {"pair_loss": pairs.item() * rows, "copy_loss": copies.item() * rows}
        return Loss((pairs + self.copy_weight * copies) * rows, rows, sums)

    def evaluate(self) -> Mapping[str, float]:
        """The loss, and how often the first caption of a drawing is found among the others."""
        validation = replace(self.training, seeds=VALIDATION_SEEDS, copies=0, is_augmented=False)
        rows = []
        for batch in (validation[index] for index in EVAL_BATCHES):
            image_BD, text_ND = self._encode(batch)
            loss = self._loss(image_BD[batch.image_N], text_ND, batch).item()
            first = slice(None, None, validation.captions)
            cosine, truth = image_BD @ text_ND[first].T, batch.meanings.text_N[first]
            shares = [(truth[cosine.argmax(axis)] == truth).float().mean() for axis in (1, 0)]
            rows.append((loss, *shares))
        loss, to_text, to_image = torch.tensor(rows).mean(0).tolist()
        return {"loss": loss, "image_to_text": to_text, "text_to_image": to_image}

    def save(self, folder: Path) -> None:
        save_encoder(self.model, folder, dtype=torch.bfloat16, pad_token=PAD)
        length = self.training.processor.format.length
        write_tokenizer(folder, self.tokenizer, max_positions=length)
        write_image_processor(folder, "siglip", self.training.resolution, Preprocessing())

    def _encode(self, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """Vectors of the drawings (B, D) and of the texts (N, D), by products in bfloat16."""
        with torch.autocast("cpu", torch.bfloat16):
            text_ND = self.model.encode_texts(batch.token_NT)
        return self._encode_images(batch.pixels_BRRC), text_ND.float()

    def _encode_images(self, pixels_BRRC: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            pixels = normalize_pixels(pixels_BRRC, HALF, HALF, torch.float32)
            return self.model.encode_images(pixels).float()

    def _copy_loss(self, image_BD: Tensor, batch: PairBatch) -> Tensor:
        """The cross-entropy of finding a drawing's copy among all drawings.

        Among them are the same objects in other places, which no caption tells apart.
        """
        again_D = self._encode_images(torch.cat([batch.copy_VRRC, batch.rearranged_VRRC]))
        copy_VD, rearranged_VD = again_D.chunk(2)
        candidates = torch.cat([image_BD, rearranged_VD])
        return F.cross_entropy(COPY_SCALE * copy_VD @ candidates.T, torch.arange(len(copy_VD)))

    def _loss(self, image_ND: Tensor, text_ND: Tensor, batch: PairBatch) -> Tensor:
        scale, bias = self.model.logit_scale, self.model.logit_bias
        assert scale is not None
        assert bias is not None
        vectors = (image_ND, text_ND, scale.exp())
        if self.loss_name == "softmax":
            return softmax_contrastive(*vectors, meanings=batch.meanings)
        return sigmoid_contrastive(*vectors, bias, meanings=batch.meanings)
