"""The tensors of a KV cache: allocation, growth and copies of rows.

R rows allocated · M rows copied · S slots allocated · K key/value heads · H head size
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.model.config import DecoderConfig
from pgcli.model.transfer import to_device

#: Rows that are copied in one operation; their keys and values are in memory twice meanwhile.
ROWS_AT_ONCE = 16


class KVBuffers(NamedTuple):
    """The tensors of a cache, at fixed addresses until it grows; steps update them in-place.

    `memory` holds keys and values, (depth, 2, R, K, S, H). `write_index_R` is each row's newest
    slot, `position_R` its position, and `first_slot_RK` the offset of each row's and head's first
    slot in a layer.
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

    def copy_rows(self, copies: RowCopies, used: int) -> None:
        """Copy the first `used` slots of rows to others."""
        for copy in copies.split(ROWS_AT_ONCE):
            copy.apply(self.memory[:, :, :, :, :used], dim=2)
        for per_row in self[1:5]:
            copies.apply(per_row)


class RowCopies(NamedTuple):
    """Pairs of a row and the row that becomes its copy; no row is in both places.

    With `index_2M`, the pairs on the device, two operations copy all rows of a tensor; without it
    each row is copied separately, which takes a third of the time on a CPU.
    """

    pairs: list[tuple[int, int]]
    index_2M: Tensor | None = None

    @classmethod
    def together(cls, pairs: list[tuple[int, int]], device: torch.device) -> RowCopies:
        """Copies by index, which is copied to the device without waiting."""
        return cls(pairs, to_device(torch.tensor(pairs).T.contiguous(), device))

    def split(self, rows: int) -> Iterator[RowCopies]:
        """The same copies, at most `rows` of them together."""
        for start in range(0, len(self.pairs), rows):
            part = slice(start, start + rows)
            index_2M = None if self.index_2M is None else self.index_2M[:, part]
            yield RowCopies(self.pairs[part], index_2M)

    def apply(self, x: Tensor, dim: int = 0) -> None:
        """Copy rows within `x`, along `dim`."""
        if self.index_2M is not None:
            from_M, to_M = self.index_2M
            x.index_copy_(dim, to_M, x.index_select(dim, from_M))
            return
        for row, to in self.pairs:
            x.select(dim, to).copy_(x.select(dim, row))


def allocate(config: DecoderConfig, rows: int, slots: int, *, like: Tensor) -> KVBuffers:
    """KVBuffers on the device and in the dtype of `like`; keys and values are not initialized."""
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
