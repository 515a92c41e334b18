"""The training task of two towers: pairs of image and text.

B rows of a batch · N rows · D width · T tokens · S meanings of an image
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pgcli.model.two_towers import TwoTowers
from pgcli.towers.texts import TextProcessor
from pgcli.training.contrastive import Meanings, sigmoid_contrastive, softmax_contrastive
from pgcli.training.data import ImageBatch
from pgcli.training.processes import ALONE, Processes
from pgcli.training.rows import TrainingRow
from pgcli.training.task import ImageTask, Loss, Metrics

ContrastiveLoss = Literal["sigmoid", "softmax"]
CHUNK_ROWS = 1024  # per chunk of the loss, instead of a matrix of all pairs
MAX_LOG_SCALE = math.log(100)  # CLIP's bound of the learned scale
NO_MEANING = -1


@dataclass(kw_only=True)
class ContrastiveTask(ImageTask[TwoTowers]):
    """Trains two towers on pairs of image and text.

    The loss needs the vectors of the whole batch. With micro-batches, the backward pass recomputes
    their activations part by part; the result is the same (Gao et al. 2021, arXiv 2101.06983).
    """

    texts: TextProcessor
    loss_name: ContrastiveLoss

    def parts(self, batch: ImageBatch) -> Iterable[ImageBatch]:
        return [batch]  # even if empty: the other processes wait for this one

    def loss(self, batch: ImageBatch) -> Loss:
        self._bound_scale()
        parts = [batch.part(*part) for part in self.micro_batches.ranges(len(batch.rows))]
        if len(parts) <= 1:
            image_ND, text_ND = self._encode(batch)
        else:
            vectors = [checkpoint(self._encode, part, use_reentrant=False) for part in parts]
            image_ND, text_ND = (torch.cat(tensors) for tensors in zip(*vectors, strict=True))
        processes, rows = self.data.processes, len(batch.rows)
        meanings = self._meanings(batch.rows, processes)
        loss = self._loss(image_ND, text_ND, meanings, processes.group)
        # the mean over the processes is the loss of the rows of all
        weight = sum(processes.gather(rows)) / processes.count
        return Loss(loss * weight, rows)

    def evaluate(self) -> Metrics:
        """The loss, and the top-1 retrieval accuracy among all rows, in both directions."""
        self._bound_scale()
        vectors: list[tuple[Tensor, Tensor]] = []
        rows: list[TrainingRow] = []
        losses: list[float] = []
        for batch in self.data.in_order(self.data.evaluation):
            parts = zip(*self.in_parts(batch, self._encode), strict=True)
            image_BD, text_BD = (torch.cat(tensors) for tensors in parts)
            vectors.append((image_BD, text_BD))
            rows += batch.rows
            loss = self._loss(image_BD, text_BD, self._meanings(batch.rows))
            losses.append(loss.item() * len(batch.rows))
        image_ND, text_ND = (torch.cat(parts) for parts in zip(*vectors, strict=True))
        meanings = self._meanings(rows)
        text_found_N, image_found_N = nearest_key(image_ND, text_ND), nearest_key(text_ND, image_ND)
        return {
            "loss": sum(losses) / len(rows),
            "image_to_text": share_of(meanings.image_NS == meanings.text_N[text_found_N][:, None]),
            "text_to_image": share_of(meanings.image_NS[image_found_N] == meanings.text_N[:, None]),
        }

    def save(self, folder: Path) -> None:
        self._bound_scale()
        super().save(folder)

    def _bound_scale(self) -> None:
        """Clamp the scale of the softmax loss to CLIP's bound, which an update may exceed."""
        if self.loss_name == "softmax" and self.model.logit_scale is not None:
            self.model.logit_scale.data.clamp_(max=MAX_LOG_SCALE)

    def _encode(self, batch: ImageBatch) -> tuple[Tensor, Tensor]:
        """The vectors of the images and of the texts (N, D)."""
        token_NT = self.texts([row.target for row in batch.rows]).to(self.device)
        with self.autocast():
            image_ND = self.model.encode_images(self.pixels(batch))
            text_ND = self.model.encode_texts(token_NT)
        return image_ND, text_ND

    def _loss(
        self,
        image_ND: Tensor,
        text_ND: Tensor,
        meanings: Meanings,
        group: dist.ProcessGroup | None = None,
    ) -> Tensor:
        """The loss of these rows, with all rows of the group as negatives."""
        assert self.model.logit_scale is not None
        scale, bias = self.model.logit_scale.exp(), self.model.logit_bias
        options: dict[str, Any] = {"meanings": meanings, "group": group, "chunk_rows": CHUNK_ROWS}
        if self.loss_name == "softmax":
            return softmax_contrastive(image_ND, text_ND, scale, **options)
        assert bias is not None
        return sigmoid_contrastive(image_ND, text_ND, scale, bias, **options)

    def _meanings(self, rows: Sequence[TrainingRow], processes: Processes = ALONE) -> Meanings:
        """Equal texts have one meaning, and all texts of an image are true of it.

        Compares the rows of all `processes`, and returns the meanings of these rows.
        """
        shares = processes.gather([(row.target, row.image_key) for row in rows])
        first = sum(map(len, shares[: processes.rank]))
        numbers, padded = self._numbers([pair for share in shares for pair in share])
        own = slice(first, first + len(rows))
        device = self.device
        return Meanings(
            torch.tensor(numbers, dtype=torch.long)[own].to(device),
            torch.tensor(padded, dtype=torch.long)[own].to(device),
        )

    def _numbers(self, rows: Sequence[tuple[str, str]]) -> tuple[list[int], list[list[int]]]:
        """The meaning of each text, and of each image, of pairs of a text and an image's key."""
        texts = [self.texts.format.clean(text) for text, _ in rows]
        number = {text: index for index, text in enumerate(dict.fromkeys(texts))}
        of_image: dict[str, dict[int, None]] = {}
        for (_, key), text in zip(rows, texts, strict=True):
            of_image.setdefault(key, {})[number[text]] = None
        longest = max(map(len, of_image.values()))
        padded = [
            [*of_image[key], *[NO_MEANING] * (longest - len(of_image[key]))] for _, key in rows
        ]
        return [number[text] for text in texts], padded


def nearest_key(query_ND: Tensor, key_MD: Tensor) -> Tensor:
    """The row of the nearest key to each query (N,)."""
    starts = range(0, len(query_ND), CHUNK_ROWS)
    parts = (query_ND[start : start + CHUNK_ROWS] for start in starts)
    return torch.cat([(part @ key_MD.T).argmax(1) for part in parts])


def share_of(is_true_NS: Tensor) -> float:
    """The share of rows in which any value is true."""
    return is_true_NS.any(dim=1).float().mean().item()
