"""The tensors of a KV cache: allocation, growth and copies of rows.

R rows allocated · S slots allocated · K key/value heads · H head size
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.model.config import DecoderConfig


class KVBuffers(NamedTuple):
    """The tensors of a cache, at fixed addresses until it grows; a step updates them in-place.

    `memory` holds keys and values, (depth, 2, R, K, S, H). `write_index_R` is the last slot that
    was written in a row, `position_R` its position, and `first_slot_RK` the offset of each row's
    and head's first slot in a layer.
    """

    memory: Tensor
    is_real_RS: Tensor
    position_RS: Tensor
    position_R: Tensor
    write_index_R: Tensor
    first_slot_RK: Tensor

    @property
    def rows(self) -> int:
        return self.is_real_RS.shape[0]

    @property
    def slots(self) -> int:
        return self.is_real_RS.shape[1]

    def grown(self, config: DecoderConfig, rows: int, slots: int, *, cleared: int) -> KVBuffers:
        """Larger buffers with the same content; the first `cleared` slots of new rows are zero."""
        larger = allocate(config, rows, slots, like=self.memory)
        for old, new in zip(self[1:5], larger[1:5], strict=True):
            if old.dim() == 1:
                new[: self.rows] = old
            else:
                new[: self.rows, : self.slots] = old
        larger.memory[:, :, : self.rows, :, :cleared].copy_(self.memory[..., :cleared, :])
        larger.memory[:, :, self.rows :, :, :cleared].zero_()
        return larger

    def copy_row(self, row: int, to: int, used: int) -> None:
        """Copy the first `used` slots of a row to another."""
        self.memory[:, :, to, :, :used] = self.memory[:, :, row, :, :used]
        for per_row in self[1:5]:
            per_row[to] = per_row[row]


def allocate(config: DecoderConfig, rows: int, slots: int, *, like: Tensor) -> KVBuffers:
    """KVBuffers with the device and dtype of `like`; keys and values are not initialized."""
    heads, device = config.num_kv_heads, like.device
    rows_and_heads = torch.arange(rows * heads, device=device).view(rows, heads)
    return KVBuffers(
        memory=like.new_empty((config.depth, 2, rows, heads, slots, config.head_dim)),
        is_real_RS=torch.zeros(rows, slots, dtype=torch.bool, device=device),
        position_RS=torch.zeros(rows, slots, dtype=torch.long, device=device),
        position_R=torch.zeros(rows, dtype=torch.long, device=device),
        write_index_R=torch.zeros(rows, dtype=torch.long, device=device),
        first_slot_RK=rows_and_heads * slots,
    )
