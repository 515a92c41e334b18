"""What the decoder remembers of rows that go on together, each at its own length.

A row brings its prefix's real slots and no padding; a row that ends frees its place for another.
Three rows after a step, the second just seated (`#` filled, `+` written by this step):

    # # # # # +
    # # # +
    # # # # +

A rows alive, and made up · B rows of a prefix · S slots so far · K key/value heads · H head size
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pgcli.model.config import DecoderConfig
from pgcli.model.kv_cache import AttentionMasks, Cache

BUCKET = 128  # slots: memory grows by so many at a time, and so in few shapes
#: Rows of a step are made up to a multiple of the first of these that they do not pass: kernels are
#: prepared for each number of rows anew, and one for a few rows more runs as long.
ROW_BUCKETS = ((2, 1), (4, 4), (64, 8), (10**9, 32))


class Places:
    """A fixed number of places. Those taken are the first ones, so that no step works for others.

    How many slots each row has filled is known here without asking the device.
    """

    def __init__(self, rows: int, config: DecoderConfig, *, like: Tensor):
        self.free = rows
        self.filled: list[int] = []
        self._config = config
        shape = (config.depth, 2, 0, config.num_kv_heads, 0, config.head_dim)
        self._memory = like.new_empty(shape)
        self._filled_A = torch.empty(0, dtype=torch.long, device=like.device)
        self._used = 0

    @property
    def taken(self) -> int:
        return len(self.filled)

    def seat(self, prefix: Cache, row_B: Sequence[int]) -> None:
        """Give places to these rows of a prefix, after those that are taken."""
        first, counts = self.taken, prefix.counts
        filled = [counts[row] for row in row_B]
        self._reserve(self.taken + len(row_B), max(filled) + 1)
        for place, row in enumerate(row_B, start=first):
            self._memory[:, :, place, :, : counts[row]] = prefix.row(row)
        self.filled += filled
        self.free -= len(row_B)

    def leave(self, ended: Sequence[int]) -> list[int]:
        """Free these places; the rows that go on move up, and who sits where now is returned.

        A hole is filled by the last row, so that at most as many rows move as end.
        """
        gone = set(ended)
        seats = list(range(self.taken))
        kept = self.taken - len(gone)
        movers = [seat for seat in seats[kept:] if seat not in gone]
        for hole, mover in zip(
            (seat for seat in seats[:kept] if seat in gone), movers, strict=True
        ):
            length = self.filled[mover]
            self._memory[:, :, hole, :, :length] = self._memory[:, :, mover, :, :length]
            seats[hole], self.filled[hole] = mover, length
        del self.filled[kept:], seats[kept:]
        self.free += len(gone)
        return seats

    @property
    def made_up(self) -> int:
        """How many rows a step has: those taken and, up to one of few numbers, places of nobody."""
        multiple = next(multiple for most, multiple in ROW_BUCKETS if self.taken <= most)
        return min(-(-self.taken // multiple) * multiple, self.taken + self.free)

    def claim_next(self) -> tuple[Tensor, AttentionMasks]:
        """Open one slot in every taken place; the positions (A, 1) and what is seen from there.

        More may be opened, behind those, in places that nobody has: what comes of them is nothing.
        """
        self._used = max(self.filled) + 1
        self._reserve(self.made_up, self._used)
        device = self._memory.device
        nobody = [max(self.filled)] * (self.made_up - self.taken)
        self._filled_A = torch.tensor([*self.filled, *nobody], device=device)
        position_A1 = self._filled_A[:, None] + 1
        slot_S = torch.arange(self._used, device=device)
        window = self._config.sliding_window
        is_even = min(self.filled) + 1 == self._used
        whole = None if is_even else (slot_S < position_A1)[:, None, None]
        near = whole
        if window is not None and self._used > window:
            near_AS = (slot_S < position_A1) & (slot_S >= position_A1 - window)
            near = near_AS[:, None, None]
        self.filled = [count + 1 for count in self.filled]
        return position_A1, AttentionMasks(whole, near)

    def write(self, layer: int, key_AK1H: Tensor, value_AK1H: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's keys and values in the claimed slots; return all so far."""
        taken = len(key_AK1H)
        key, value = self._memory[layer, :, :taken]
        row_A = torch.arange(taken, device=key.device)
        key[row_A, :, self._filled_A] = key_AK1H[:, :, 0]
        value[row_A, :, self._filled_A] = value_AK1H[:, :, 0]
        return key[:, :, : self._used], value[:, :, : self._used]

    def _reserve(self, rows: int, slots: int) -> None:
        """Have memory for so many rows of so many slots; what is remembered moves to the larger.

        Few rows take little, whatever the number of places: rows grow by doubling.
        """
        depth, two, seats, heads, there, size = self._memory.shape
        if rows <= seats and slots <= there:
            return
        more = seats if rows <= seats else min(self.free + self.taken, max(rows, 2 * seats))
        larger = max(there, -(-slots // BUCKET) * BUCKET)
        # zeros: a slot that no row filled weighs nothing, but nothing times NaN would be NaN
        memory = self._memory.new_zeros(depth, two, more, heads, larger, size)
        memory[:, :, :seats, :, :there] = self._memory
        self._memory = memory
