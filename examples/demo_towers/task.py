"""The training task of the built-in two towers: drawings, their captions, a contrastive loss.

B drawings · V drawings that are there twice · N texts · D width
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from examples.demo_towers.dataset import CaptionedScenes, PairBatch, load_batches
from pgcli.checkpoints.preprocessing import Preprocessing, write_image_processor
from pgcli.checkpoints.save import save_two_towers
from pgcli.model.siglip import normalize_pixels
from pgcli.model.two_towers import TwoTowers
from pgcli.training.contrastive import sigmoid_contrastive, softmax_contrastive
from pgcli.training.learned_tokenizer import PAD, write_tokenizer
from pgcli.training.task import Loss, MicroBatches

HALF = torch.tensor(0.5)  # SigLIP's mean and standard deviation of every channel
EVAL_BATCHES = range(4)
COPY_SCALE = 20.0  # of its cosines


@dataclass
class CaptionedScenesTask:
    """Learns which caption belongs to which drawing, and which drawing is a copy of which.

    `copy_weight` is the weight of the loss of finding copies.
    """

    model: TwoTowers
    tokenizer: Tokenizer
    training: CaptionedScenes
    validation: CaptionedScenes
    loss_name: Literal["sigmoid", "softmax"]
    copy_weight: float = 0.5
    workers: int = 0
    micro_batches: MicroBatches = field(default_factory=lambda: MicroBatches(is_fixed=True))

    def batches(self, first: int, stop: int) -> Generator[PairBatch]:
        yield from load_batches(self.training, range(first, stop), workers=self.workers)

    def size(self, batch: PairBatch) -> int:
        return len(batch.pixels_BRRC)

    def parts(self, batch: PairBatch, largest: int) -> list[PairBatch]:
        return [batch]

    def loss(self, part: PairBatch) -> Loss:
        """The loss of both; `pair_loss` and `copy_loss` are those of each."""
        image_BD, text_ND = self._encode(part)
        rows = len(image_BD)
        pairs = self._loss(image_BD[part.image_N], text_ND, part)
        copies = self._copy_loss(image_BD, part) if len(part.copy_VRRC) else torch.zeros(())
        sums = {"pair_loss": pairs.item() * rows, "copy_loss": copies.item() * rows}
        return Loss((pairs + self.copy_weight * copies) * rows, rows, sums)

    def evaluate(self) -> Mapping[str, float]:
        """The loss, and how often the first caption of a drawing is found among the others."""
        found = []
        for index in EVAL_BATCHES:
            batch = self.validation[index]
            image_BD, text_ND = self._encode(batch)
            loss = self._loss(image_BD[batch.image_N], text_ND, batch).item()
            first = slice(None, None, self.validation.captions)
            cosine = image_BD @ text_ND[first].T
            truth = batch.meanings.text_N[first]
            to_text = (truth[cosine.argmax(1)] == truth).float().mean().item()
            to_image = (truth[cosine.argmax(0)] == truth).float().mean().item()
            found.append((loss, to_text, to_image))
        loss, to_text, to_image = torch.tensor(found).mean(0).tolist()
        return {"loss": loss, "image_to_text": to_text, "text_to_image": to_image}

    def rank(self, found: Mapping[str, float]) -> tuple[float, ...]:
        return (-found["loss"],)

    def save(self, folder: Path) -> None:
        save_two_towers(self.model, folder, dtype=torch.bfloat16, pad_token=PAD)
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
        assert self.model.logit_scale is not None
        assert self.model.logit_bias is not None
        scale = self.model.logit_scale.exp()
        if self.loss_name == "softmax":
            return softmax_contrastive(image_ND, text_ND, scale, meanings=batch.meanings)
        return sigmoid_contrastive(
            image_ND, text_ND, scale, self.model.logit_bias, meanings=batch.meanings
        )
