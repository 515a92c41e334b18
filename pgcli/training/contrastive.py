"""The contrastive losses of CLIP (softmax) and SigLIP (sigmoid): whole, in chunks, over processes.

N rows of this process · M rows of all processes · D width · S meanings of an image

Row i of the images and row i of the texts are a pair. Every other combination is a negative one,
unless `Meanings` says that the text is true of the image: then the loss ignores it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from pgcli.training.task import sum_over_chunks

#: The scale and bias at which SigLIP's training starts, before `exp` of the scale.
SIGLIP_SCALE, SIGLIP_BIAS = 10.0, -10.0


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
    """CLIP's loss: the mean cross-entropy of finding each image's text, and each text's image.

    The logits are `scale` times the products of the vectors, which are normalized to a length of 1;
    `scale` is the factor itself, not its logarithm. The loss is the mean over rows of both
    directions, as in transformers' `clip_loss` and open_clip's `ClipLoss`. A batch cannot be split:
    the mean of the losses of its parts is another value, as each row then has fewer negatives.

    Args:
        image_ND: A vector for each image of this process, (N, D).
        text_ND: A vector for each text of this process, (N, D).
        scale: The learned temperature's inverse, a scalar.
        meanings: True texts of images, which are not negatives.
        chunk_rows: Rows computed at a time. Memory is then in proportion to `chunk_rows` times M;
            the logits are computed again in the backward pass.
        group: Processes that hold a part of the batch each, of any size. The result is the loss of
            this process's rows: its mean over the processes is the loss of the whole batch, and
            the mean of their gradients, which DistributedDataParallel takes, the whole gradient.

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
    """The sum of the cross-entropies of finding each query's key, `first` rows further down.

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
