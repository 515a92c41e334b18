"""Sums losses over chunks of rows, so that the logits of all rows are never in memory together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


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
