"""The KV cache: keys, values and the real slots of every row, for prefill, decode and branches.

The slots of a row are `[head][image][padding][prompt][generated]`; the head, tokens before the
image, is empty for PaliGemma. Two prompts of three tokens and of
one, inserted together, and a row inserted two steps later (`#` real, `.` padding, `+` appended by
this step):

    # # # # # # # +
    # # . . # # # +
    # # # # # +

B rows of this pass · L new slots · S slots read · R rows allocated · M new slots of all rows ·
K key/value heads · H head size
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.model.attention import (
    AttentionMasks,
    branch_masks,
    causal_prompt_masks,
    step_masks,
)
from pgcli.model.config import DecoderConfig
from pgcli.model.transfer import to_device

#: Rows that are copied in one operation; their keys and values are in memory twice meanwhile.
ROWS_AT_ONCE = 16
BUCKET = 128  # slots are allocated, and on the CPU cleared, in multiples of this
#: Pairs of a maximum row count and the multiple to which a step's rows are padded: kernels are
#: selected for each row count, and a few more rows take no longer.
ROW_BUCKETS = ((2, 1), (4, 4), (64, 8), (10**9, 32))
FEW_ROWS = 8  # a cache that allocates all rows starts with this fraction of them


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


class KVCache:
    """Keys and values of up to `max_rows` rows. The rows in use come first.

    `insert` opens rows for a group that is prefilled together, `copy` opens copies of rows,
    `append` opens one slot in every row, and `branch` opens slots for continuations, which the next
    pass overwrites. All but `copy` return the positions and masks of their pass, in which every
    layer calls `write` once. A position is a row's count of real slots, from the configuration's
    `first_position`, and no query attends to a slot that is not real. With `fixed_shape` every step
    reads all allocated slots under a mask, so that shapes stay the same and `advance`, the device's
    part of `append`, can be recorded and replayed; without it a step reads only the slots in use.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        max_rows: int,
        like: Tensor,
        fixed_shape: bool | None = None,
    ):
        self.max_rows = max_rows
        self.fixed_shape = like.device.type == "cuda" if fixed_shape is None else fixed_shape
        #: Allocate all rows at once: growing a cache needs memory for the old and the new one.
        self.allocates_all = self.fixed_shape
        #: Each row's slots in use, including padding; a list on the host needs no synchronization.
        self.lengths: list[int] = []
        self._has_padding: list[bool] = []
        self._config = config
        self._buffers = allocate(config, 0, 0, like=like)
        self._cleared = 0
        self._rows = slice(0)
        self._slots: slice | None = None
        self._index_BK = self._buffers.first_slot_RK
        self._end = 0

    @property
    def rows(self) -> int:
        """The rows in use."""
        return len(self.lengths)

    @property
    def slots(self) -> int:
        """The allocated slots of each row."""
        return self._buffers.slots

    @property
    def allocated_rows(self) -> int:
        return self._buffers.rows

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that steps read and write, at the same addresses until the cache grows."""
        return self._buffers

    @property
    def newest_slot_B(self) -> Tensor | None:
        """In a decode step, each padded row's newest slot; None in other passes."""
        return self._buffers.write_index_R[self._rows] if self._slots is None else None

    @property
    def opened(self) -> slice | None:
        """The new slots of a prefill or a branch; None in a decode step."""
        return self._slots

    @property
    def real_BS(self) -> Tensor:
        """For this pass's rows, which of the slots read are not padding."""
        return self._buffers.is_real_RS[self._rows, : self._end]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values in all allocated slots of this pass's rows."""
        key_BKSH, value_BKSH = self._buffers.memory[index, :, self._rows]
        return key_BKSH, value_BKSH

    @property
    def nbytes(self) -> int:
        return self._buffers.memory.nbytes

    @property
    def padded_rows(self) -> int:
        """The rows of a step: the rows in use, padded to one of a few row counts."""
        return min(_padded(self.rows), self.max_rows)

    def insert(
        self,
        rows: int,
        slots: int,
        is_real_BL: Tensor | None = None,
        *,
        image: slice = slice(0),
        new_slots: int = 1,
    ) -> tuple[Tensor, AttentionMasks]:
        """Open `rows` rows with a prefix of `slots`; return positions (B, L) and masks.

        `is_real_BL` is False on padding; None means no padding, so that no mask is needed unless
        prompts are causal, with the slots of their image in `image`. Queries on padding attend to
        real slots too, so that no row of scores is empty. `new_slots` is the number of slots to
        allocate for each row's further tokens.
        """
        first, end = self.rows, self.rows + rows
        self.reserve(end, slots, new_slots)
        self._rows, self._slots, self._end = slice(first, end), slice(slots), slots
        buffers = self._buffers
        is_real_BS, position_B = buffers.is_real_RS[first:end], buffers.position_R[first:end]
        is_real_BS.fill_(False)
        if is_real_BL is None:
            is_real_BS[:, :slots].fill_(True)
            first_position = self._config.first_position
            steps = torch.arange(slots, device=is_real_BS.device) + first_position
            position_BL = steps.expand(rows, -1)
        else:
            is_real_BS[:, :slots] = is_real_BL
            position_BL = is_real_BL.cumsum(1) + (self._config.first_position - 1)
        buffers.position_RS[first:end, :slots] = position_BL
        position_B.copy_(position_BL[:, -1])
        buffers.write_index_R[first:end].fill_(slots - 1)
        self.lengths += [slots] * rows
        self._has_padding += [is_real_BL is not None] * rows
        if self._config.causal_prompt:
            window = self._config.sliding_window
            real_BL = is_real_BS[:, :slots]
            return position_BL, causal_prompt_masks(real_BL, position_BL, image, window)
        mask = None if is_real_BL is None else is_real_BS[:, None, None, :slots]
        return position_BL, AttentionMasks(mask, mask)

    def append(self) -> tuple[Tensor, AttentionMasks]:
        """Open one slot in every row; return positions (B, 1) and masks for the padded rows.

        The results of unused rows are meaningless and do not affect other rows.
        """
        self.begin_step()
        return self.advance()

    def begin_step(self) -> None:
        """The host's part of `append`: allocate and count the slots."""
        rows, used = self.padded_rows, max(self.lengths) + 1
        self.reserve(rows, used)
        self._rows, self._slots = slice(rows), None
        self.lengths = [length + 1 for length in self.lengths]
        self._end = self.slots if self.fixed_shape else used

    def advance(self) -> tuple[Tensor, AttentionMasks]:
        """The device's part of `append`: update positions and indices in-place; same result."""
        buffers, rows = self._buffers, self._rows.stop
        write_B = buffers.write_index_R[:rows]
        write_B.add_(1).clamp_(max=self.slots - 1)  # unused rows stay within bounds
        position_B1 = buffers.position_R[:rows].add_(1)[:, None]
        buffers.is_real_RS[:rows].scatter_(1, write_B[:, None], True)
        if self._config.sliding_window is not None:
            buffers.position_RS[:rows].scatter_(1, write_B[:, None], position_B1)
        self._index_BK = buffers.first_slot_RK[:rows] + write_B[:, None]
        return position_B1, self._step_masks(position_B1)

    def branch(self, branch_BL: Tensor) -> tuple[Tensor, AttentionMasks]:
        """Open slots for continuations of the last inserted rows; their positions and masks.

        `branch_BL` is the number of each token's continuation, -1 for padding. A token
        attends to its row's prefix and to the earlier tokens of its own branch.
        """
        rows, new = branch_BL.shape
        first, prefix = self.rows - rows, self.lengths[-1]
        self.reserve(self.rows, prefix + new)
        self._rows, self._slots = slice(first, self.rows), slice(prefix, prefix + new)
        self._end = prefix + new
        buffers = self._buffers
        return branch_masks(
            branch_BL,
            buffers.is_real_RS[self._rows, :prefix],
            buffers.position_RS[self._rows, :prefix],
            buffers.position_R[self._rows],
            self._config.sliding_window,
        )

    def write(self, layer: int, key_BKLH: Tensor, value_BKLH: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's keys and values in the open slots; return all slots to read."""
        key, value = self._buffers.memory[layer, :, self._rows]
        if self._slots is None:
            size = key.shape[-1]
            index = self._index_BK.flatten()
            key.view(-1, size).index_copy_(0, index, key_BKLH.reshape(-1, size))
            value.view(-1, size).index_copy_(0, index, value_BKLH.reshape(-1, size))
        else:
            key[:, :, self._slots] = key_BKLH
            value[:, :, self._slots] = value_BKLH
        return key[:, :, : self._end], value[:, :, : self._end]

    def remove(self, rows: Sequence[int], others: Sequence[Tensor] = ()) -> list[int]:
        """Free these rows; return the new order of the remaining ones, by their former indices.

        The last rows fill the holes, so that as few rows as possible are copied. The same rows of
        the tensors in `others` are copied too.
        """
        gone, kept = set(rows), self.rows - len(set(rows))
        order = list(range(self.rows))
        last = [row for row in order[kept:] if row not in gone]
        holes = [row for row in order[:kept] if row in gone]
        self._copy_rows([*zip(last, holes, strict=True)], others)
        for hole, row in zip(holes, last, strict=True):
            order[hole] = row
        self.lengths = [self.lengths[row] for row in order[:kept]]
        self._has_padding = [self._has_padding[row] for row in order[:kept]]
        return order[:kept]

    def _copy_rows(self, pairs: list[tuple[int, int]], others: Sequence[Tensor] = ()) -> None:
        """Copy each pair's first row to its second."""
        if not pairs:
            return
        copies = RowCopies(pairs)
        if self.fixed_shape and len(pairs) > 1:
            copies = RowCopies.together(pairs, self._buffers.memory.device)
        self._buffers.copy_rows(copies, max(self.lengths[row] for row, _ in pairs))
        for tensor in others:
            copies.apply(tensor)

    def reserve(self, rows: int, used: int, new_slots: int = 0) -> None:
        """Allocate `rows` rows of `used` + `new_slots` slots; stored keys and values are kept.

        The number of rows doubles as needed, so that few rows take little memory with any
        `max_rows`; with `allocates_all`, all rows follow after the first eighth. Without
        `fixed_shape`, slots are zeroed when they come into use: until then they take no memory on
        the CPU. Raises ValueError for more than `max_rows` rows.
        """
        if rows > self.max_rows:
            raise ValueError(f"the cache holds at most {self.max_rows} rows, not {rows}")
        if rows > self.allocated_rows or used + new_slots > self.slots:
            self._buffers = self._buffers.grown(
                self._config,
                self._grown_rows(rows),
                max(self.slots, _rounded(used + new_slots)),
                cleared=self._cleared,
            )
        cleared = self.slots if self.fixed_shape else _rounded(used)
        if cleared > self._cleared:
            # masked slots have weight 0, but 0 times NaN is NaN
            self._buffers.memory[..., self._cleared : cleared, :].zero_()
            self._cleared = cleared

    def _grown_rows(self, rows: int) -> int:
        """How many rows to allocate if so many are needed."""
        if rows <= self.allocated_rows:
            return self.allocated_rows
        if self.allocates_all and rows * FEW_ROWS > self.max_rows:
            return self.max_rows
        return min(self.max_rows, max(rows, 2 * self.allocated_rows))

    def _step_masks(self, position_B1: Tensor) -> AttentionMasks:
        """The masks of each row's newest slot; None if it attends to every slot that is read."""
        # lengths change from step to step; a recorded step must not depend on them
        attends_to_all = (
            not self.fixed_shape and not any(self._has_padding) and min(self.lengths) == self._end
        )
        return step_masks(
            self.real_BS,
            self._buffers.position_RS[self._rows, : self._end],
            position_B1,
            self._config.sliding_window,
            attends_to_all=attends_to_all,
        )


def _padded(rows: int) -> int:
    multiple = next(multiple for most, multiple in ROW_BUCKETS if rows <= most)
    return -(-rows // multiple) * multiple


def _rounded(slots: int) -> int:
    return -(-slots // BUCKET) * BUCKET
