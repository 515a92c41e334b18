"""The training task of two towers, with the losses of CLIP (softmax) and SigLIP (sigmoid).

B rows of a batch · N rows of this process · M rows of all processes · D width · T tokens
S meanings of an image

Row i of the images and row i of the texts are a pair. Every other combination is a negative one,
unless `Meanings` says that the text is true of the image: then the loss ignores it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pgcli.checkpoints.config import image_preprocessing, read_description
from pgcli.checkpoints.families.encoders import FamilyName
from pgcli.checkpoints.files import TOKENIZER_FILES
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.checkpoints.save import copy_files, save_encoder
from pgcli.errors import UsageError
from pgcli.model.siglip import TwoTowers
from pgcli.run.events import Message
from pgcli.text import count
from pgcli.towers.engine import TextFormat, TextProcessor, canonical_text, text_processor
from pgcli.training.encoders import (
    EOS,
    PAD,
    TEXT_SIZES,
    learn_tokenizer,
    new_two_towers,
    two_towers_of,
    write_image_files,
    write_tokenizer,
)
from pgcli.training.processes import ALONE, Processes
from pgcli.training.rows import TrainingRow
from pgcli.training.task import (
    ImageBatch,
    ImageTask,
    Loss,
    Metrics,
    MicroBatches,
    TaskInputs,
    sum_over_chunks,
)

ENCODED_TEXTS = 1000  # that are in memory at once
ContrastiveLoss = Literal["sigmoid", "softmax"]
CHUNK_ROWS = 1024  # per chunk of the loss, instead of a matrix of all pairs
MAX_LOG_SCALE = math.log(100)  # CLIP's bound of the learned scale
NO_MEANING = -1
#: A model, its texts and images, and the function that saves its tokenizer.
Start = tuple[TwoTowers, TextProcessor, Preprocessing, Callable[[Path], object]]


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


def make_contrastive_task(inputs: TaskInputs) -> ContrastiveTask:
    """The task for two towers from a checkpoint, or for new ones with a learned tokenizer.

    Raises UsageError for a checkpoint of another kind, and for an unsuitable loss.
    """
    options, checkpoint = inputs.options, inputs.checkpoint
    source = None if checkpoint is None else checkpoint.folder
    if checkpoint is None:
        model, texts, preprocessing, save_tokenizer = new_start(inputs)
    else:
        model, texts, preprocessing, save_tokenizer = checkpoint_start(checkpoint, inputs.device)
    if options.loss == "sigmoid" and model.logit_bias is None:
        raise UsageError(
            "<--loss sigmoid> learns a bias, which CLIP's checkpoints do not have",
            hint="<--loss softmax>, or a SigLIP checkpoint",
        )
    has_sigmoid = model.logit_bias is not None and model.config.has_sigmoid
    loss = options.loss or ("sigmoid" if has_sigmoid else "softmax")
    model.config = replace(model.config, has_sigmoid=loss == "sigmoid")
    if options.probe:  # trains the pooling, the projections, the scale and the bias
        for tower in filter(None, (model.vision, model.text)):
            tower.requires_grad_(requires_grad=False)

    def save(folder: Path) -> None:
        save_encoder(model, folder, dtype=torch.float32, pad_token=texts.format.pad)
        save_tokenizer(folder)
        family: FamilyName = "clip" if model.config.family == "clip" else "siglip"
        resolution = model.config.vision.resolution
        write_image_files(source, folder, family, resolution, preprocessing)

    every_text = [row.target for row in (*inputs.train, *inputs.evaluation)]
    if truncated := count_truncated(every_text, texts):
        what = f"truncated {count(truncated, 'text')} to the length of the model's input"
        inputs.on_event(Message(what))
    # a process that repeats its part of an update would exchange vectors alone
    is_fixed = bool(options.micro_batch) or inputs.processes.count > 1
    micro_batches = MicroBatches(options.micro_batch, is_fixed=is_fixed)
    fields = inputs.fields(model, preprocessing, save, micro_batches)
    return ContrastiveTask(**fields, texts=texts, loss_name=loss)


def checkpoint_start(checkpoint: Checkpoint, device: torch.device) -> Start:
    """The two towers of a checkpoint. Raises UsageError for a checkpoint of another kind."""
    folder, description = checkpoint.folder, read_description(checkpoint.folder)
    if description.kind != "two_towers":
        raise UsageError(
            f"{checkpoint.name} has no text tower, and <--task contrastive> trains one",
            hint="name SigLIP or CLIP, or begin with <--init small>",
        )
    texts = text_processor(folder, description)
    assert texts is not None
    model = two_towers_of(folder, description, device)
    save_tokenizer = partial(copy_files, folder, names=TOKENIZER_FILES)
    return model, texts, image_preprocessing(folder, description), save_tokenizer


def new_start(inputs: TaskInputs) -> Start:
    """Two towers with random weights, and a tokenizer that is learned from the texts."""
    size = inputs.options.init
    assert size is not None
    targets = (canonical_text(row.target) for row in inputs.train)
    _, length, max_tokens = TEXT_SIZES[size]
    tokenizer = learn_tokenizer(targets, max_tokens=max_tokens)
    format = TextFormat(length, bos=None, eos=EOS, pad=PAD, clean=canonical_text)
    model = new_two_towers(
        size,
        tokens=tokenizer.get_vocab_size(),
        loss=inputs.options.loss or "sigmoid",
        seed=inputs.options.seed,
    ).to(inputs.device)
    save_tokenizer = partial(write_tokenizer, tokenizer=tokenizer, max_positions=length)
    return model, TextProcessor(tokenizer, format), Preprocessing(), save_tokenizer


def count_truncated(targets: Sequence[str], texts: TextProcessor) -> int:
    """The number of the texts that are longer than the model's input."""
    starts = range(0, len(targets), ENCODED_TEXTS)
    chunks = (targets[start : start + ENCODED_TEXTS] for start in starts)
    return sum(
        text in cut for chunk in chunks for cut in [texts.truncated(chunk)] for text in chunk
    )


class Meanings(NamedTuple):
    """The meanings of texts and images, as numbers.

    A text is true of an image that has its number. Captions of equal meaning share a number; by
    default an image has only the number of its own text.
    """

    text_N: Tensor
    image_NS: Tensor

    def true_texts(self, group: dist.ProcessGroup | None) -> Callable[[int, int], Tensor]:
        """A function from a range of this process's images to the mask of true texts (n, M)."""
        text_M = gather(self.text_N, group)
        return lambda start, stop: has_meaning(self.image_NS[start:stop], text_M)

    def true_images(self, group: dist.ProcessGroup | None) -> Callable[[int, int], Tensor]:
        """A function from a range of this process's texts to the mask of fitting images (n, M)."""
        image_MS = gather(self.image_NS, group)
        return lambda start, stop: has_meaning(image_MS, self.text_N[start:stop]).T


def softmax_contrastive(
    image_ND: Tensor,
    text_ND: Tensor,
    scale: Tensor,
    *,
    meanings: Meanings | None = None,
    chunk_rows: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """CLIP's loss: the mean cross-entropy of matching images to texts and texts to images.

    The logits are `scale` times the products of the vectors, which are normalized to a length of 1;
    `scale` is the factor itself, not its logarithm. The loss is the mean over rows of both
    directions, as in transformers' `clip_loss` and open_clip's `ClipLoss`. A batch cannot be split:
    the mean of the losses of its parts is another value, as each row then has fewer negatives.

    Args:
        meanings: True texts of images, which are not negatives.
        chunk_rows: Rows computed at a time; memory is in proportion to `chunk_rows` times M.
        group: Processes that hold a part of the batch each, of any size. The mean of the result
            over the processes is the loss of the whole batch.

    Source: Radford et al. 2021 (arXiv 2103.00020), figure 3.
    """
    first = first_row(image_ND, group)
    text_MD, image_MD = gather(text_ND, group), gather(image_ND, group)
    true_texts = None if meanings is None else meanings.true_texts(group)
    true_images = None if meanings is None else meanings.true_images(group)
    image_to_text = pair_cross_entropy(image_ND, text_MD, scale, first, chunk_rows, true_texts)
    text_to_image = pair_cross_entropy(text_ND, image_MD, scale, first, chunk_rows, true_images)
    return (image_to_text + text_to_image) / (2 * mean_rows(text_MD, group))


def sigmoid_contrastive(
    image_ND: Tensor,
    text_ND: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    meanings: Meanings | None = None,
    chunk_rows: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """SigLIP's loss: is each image and text a pair? The sum over texts, the mean over images.

    The logits are `scale` times the products of the vectors, plus `bias`. big_vision,
    transformers and open_clip do the same; divided by M it would be the mean over pairs. For the
    arguments and for processes see `softmax_contrastive`; only the texts are exchanged here.

    Source: Zhai et al. 2023 (arXiv 2303.15343), algorithm 1.
    """
    first, text_MD = first_row(image_ND, group), gather(text_ND, group)
    is_true = None if meanings is None else meanings.true_texts(group)

    def loss_of_rows(start: int, stop: int) -> Tensor:
        logit_nM = (scale * image_ND[start:stop] @ text_MD.T + bias).float()
        row_n = torch.arange(stop - start, device=logit_nM.device)
        pair_n = first + start + row_n
        # -log sigmoid(x) of the pairs and -log sigmoid(-x) of the rest, without a label matrix
        logit_nM[row_n, pair_n] *= -1
        loss_nM = F.softplus(logit_nM)
        if is_true is not None:
            loss_nM = loss_nM.masked_fill(beside_pairs(is_true(start, stop), pair_n), 0)
        return loss_nM.sum()

    loss = sum_over_chunks(loss_of_rows, len(image_ND), chunk_rows)
    return loss / mean_rows(text_MD, group)


def pair_cross_entropy(
    query_ND: Tensor,
    key_MD: Tensor,
    scale: Tensor,
    first: int,
    chunk_rows: int | None = None,
    is_true: Callable[[int, int], Tensor] | None = None,
) -> Tensor:
    """The sum of the cross-entropies of the queries with their keys; row 0 has the key `first`.

    The loss ignores keys for which `is_true` holds, apart from the query's own.
    """

    def loss_of_rows(start: int, stop: int) -> Tensor:
        logit_nM = (scale * query_ND[start:stop] @ key_MD.T).float()
        pair_n = torch.arange(first + start, first + stop, device=logit_nM.device)
        if is_true is not None:
            logit_nM = logit_nM.masked_fill(beside_pairs(is_true(start, stop), pair_n), -torch.inf)
        return F.cross_entropy(logit_nM, pair_n, reduction="sum")

    return sum_over_chunks(loss_of_rows, len(query_ND), chunk_rows)


def has_meaning(image_NS: Tensor, text_M: Tensor) -> Tensor:
    """Whether each text's meaning is among each image's (N, M)."""
    is_true_NM = torch.zeros(len(image_NS), len(text_M), dtype=torch.bool, device=text_M.device)
    for meaning_N in image_NS.T:  # one at a time: a tensor of all would be S times as large
        is_true_NM |= meaning_N[:, None] == text_M
    return is_true_NM


def beside_pairs(is_true_nM: Tensor, pair_n: Tensor) -> Tensor:
    """The mask of true texts or images, without each row's own pair."""
    return is_true_nM.scatter(1, pair_n[:, None], False)


def mean_rows(rows_MD: Tensor, group: dist.ProcessGroup | None) -> float:
    """The mean number of rows per process, from the rows of all."""
    return len(rows_MD) / (1 if group is None else dist.get_world_size(group))


def row_counts(rows_ND: Tensor, group: dist.ProcessGroup) -> list[int]:
    """The number of rows of each process."""
    own = torch.tensor([len(rows_ND)], device=rows_ND.device)
    counts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, own, group=group)
    return torch.cat(counts).tolist()


def first_row(rows_ND: Tensor, group: dist.ProcessGroup | None) -> int:
    """The index of this process's first row in the whole batch."""
    return 0 if group is None else sum(row_counts(rows_ND, group)[: dist.get_rank(group)])


def gather(rows_ND: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The rows of all processes (M, D); gradients flow back to the process of each row."""
    if group is None:
        return rows_ND
    gathered: Tensor = _Gather.apply(rows_ND, group)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """All-gather; the backward pass sums the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.counts = group, row_counts(rows_ND, group)
        padding = rows_ND.new_zeros(max(ctx.counts) - len(rows_ND), *rows_ND.shape[1:])
        own = torch.cat([rows_ND, padding])
        parts = [torch.empty_like(own) for _ in ctx.counts]
        dist.all_gather(parts, own, group=group)
        return torch.cat([part[:rows] for part, rows in zip(parts, ctx.counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient_MD: Tensor) -> tuple[Tensor, None]:
        gradient_MD = gradient_MD.contiguous()
        dist.all_reduce(gradient_MD, group=ctx.group)
        return torch.split_with_sizes(gradient_MD, ctx.counts)[dist.get_rank(ctx.group)], None
