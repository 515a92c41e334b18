"""The contrastive losses of CLIP (softmax) and SigLIP (sigmoid): whole, in chunks, over processes.

N rows of this process · M rows of all processes · D width

Row i of the images and row i of the texts are a pair; every other combination is a negative one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

#: The scale and bias at which SigLIP's training starts, before `exp` of the scale.
SIGLIP_SCALE, SIGLIP_BIAS = 10.0, -10.0


def softmax_contrastive(
    image_ND: Tensor,
    text_ND: Tensor,
    scale: Tensor,
    *,
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
        chunk_rows: Rows computed at a time. Memory is then in proportion to `chunk_rows` times M;
            the logits are computed again in the backward pass.
        group: Processes that hold a part of the batch each, of equal size. The result is the loss
            of this process's rows: its mean over the processes is the loss of the whole batch, and
            the mean of their gradients, which DistributedDataParallel takes, the whole gradient.

    Source: Radford et al. 2021 (arXiv 2103.00020), figure 3.
    """
    first = first_row(len(image_ND), group)
    image_to_text = pair_cross_entropy(image_ND, gather(text_ND, group), scale, first, chunk_rows)
    text_to_image = pair_cross_entropy(text_ND, gather(image_ND, group), scale, first, chunk_rows)
    return (image_to_text + text_to_image) / 2


def sigmoid_contrastive(
    image_ND: Tensor,
    text_ND: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    chunk_rows: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """SigLIP's loss: is each image and text a pair? The sum over texts, the mean over images.

    The logits are `scale` times the products of the vectors, plus `bias`. The convention is that of
    big_vision, transformers and open_clip; divided by M it would be the mean over pairs. For the
    arguments and for processes see `softmax_contrastive`; only the texts are exchanged here.

    Source: Zhai et al. 2023 (arXiv 2303.15343), algorithm 1.
    """
    first, text_MD = first_row(len(image_ND), group), gather(text_ND, group)

    def loss_of_rows(start: int, stop: int) -> Tensor:
        logit_nM = (scale * image_ND[start:stop] @ text_MD.T + bias).float()
        row_n = torch.arange(stop - start, device=logit_nM.device)
        # -log sigmoid(x) of the pairs and -log sigmoid(-x) of the others, without a label matrix
        logit_nM[row_n, first + start + row_n] *= -1
        return F.softplus(logit_nM).sum()

    return sum_over_chunks(loss_of_rows, len(image_ND), chunk_rows) / len(image_ND)


def pair_cross_entropy(
    query_ND: Tensor, key_MD: Tensor, scale: Tensor, first: int, chunk_rows: int | None = None
) -> Tensor:
    """The mean cross-entropy of finding each query's key, which is `first` rows further down."""

    def loss_of_rows(start: int, stop: int) -> Tensor:
        logit_nM = (scale * query_ND[start:stop] @ key_MD.T).float()
        pair_n = torch.arange(first + start, first + stop, device=logit_nM.device)
        return F.cross_entropy(logit_nM, pair_n, reduction="sum")

    return sum_over_chunks(loss_of_rows, len(query_ND), chunk_rows) / len(query_ND)


def sum_over_chunks(
    loss_of_rows: Callable[[int, int], Tensor], rows: int, chunk_rows: int | None
) -> Tensor:
    """The sum of the losses of consecutive chunks, whose logits are not kept for the backward."""
    if chunk_rows is None or chunk_rows >= rows:
        return loss_of_rows(0, rows)
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows is {chunk_rows}, not 1 or more")
    losses = [
        checkpoint(loss_of_rows, start, min(start + chunk_rows, rows), use_reentrant=False)
        for start in range(0, rows, chunk_rows)
    ]
    return torch.stack(losses).sum()


def first_row(rows: int, group: dist.ProcessGroup | None) -> int:
    """The place of this process's first row in the whole batch."""
    return 0 if group is None else dist.get_rank(group) * rows


def gather(rows_ND: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The rows of all processes (M, D); gradients go back to the process of each row."""
    if group is None:
        return rows_ND
    gathered: Tensor = _Gather.apply(rows_ND, group)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """All-gather; the backward pass sums the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(rows_ND) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, rows_ND.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient_MD: Tensor) -> tuple[Tensor, None]:
        gradient_MD = gradient_MD.contiguous()
        dist.all_reduce(gradient_MD, group=ctx.group)
        rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        return gradient_MD.chunk(size)[rank], None
