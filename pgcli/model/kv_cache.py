"""What the decoder remembers of a batch: keys, values, which slots are real, positions and masks.

Slots lie as `[image][padding][prompt][generated]`. A prompt of 3 tokens and one of 1, two image
slots each, after two steps (`#` real, `.` padding):

    # # # # # # #
    # # . . # # #

B rows · L new slots this pass · S slots so far · K key/value heads · H head size
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AttentionMasks(NamedTuple):
    """Which slots the new ones see: True where a key may be seen, (B, 1, 1, S) or (B, 1, L, S).

    None stands for all. `sliding` holds for the layers whose window the new slots are under; the
    prefix never is: it sees itself whole at any window, as transformers computes it.
    """

    full: Tensor | None
    sliding: Tensor | None


class Cache:
    """A fixed number of slots for a batch of rows; `claim` and then `write` once per layer.

    Which slots are real decides everything else: a row's position is its count of real slots,
    and no query of any row ever sees a slot that is not real. Padding therefore costs work and
    changes nothing. `window` is how many positions a generated token sees in the layers that have
    one, itself counted.
    """

    def __init__(
        self,
        *,
        rows: int,
        slots: int,
        depth: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        window: int | None = None,
    ):
        shape = (depth, 2, rows, num_kv_heads, slots, head_dim)
        self._memory = torch.empty(shape, dtype=dtype, device=device)
        self._is_real_BS = torch.zeros(rows, slots, dtype=torch.bool, device=device)
        self._position_BS = torch.zeros(rows, slots, dtype=torch.long, device=device)
        self._count_B = torch.zeros(rows, dtype=torch.long, device=device)
        self._window = window
        self._has_padding = False
        self._slots_before = 0
        self._is_forked = False
        self.length = 0

    @property
    def rows(self) -> int:
        return self._memory.shape[2]

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def claim(self, is_real_BL: Tensor | None, new: int) -> tuple[Tensor, AttentionMasks]:
        """Open `new` slots in every row; return their positions (B, L) and what they see.

        Positions count real slots from 1, as transformers counts them. The masks are (B, 1, 1, S),
        or None where no slot so far is padding: then every query sees every key and attention
        stays on its fastest path. `is_real_BL` None says the same of the new slots. Padding queries
        see the real slots too, so no row of scores is empty. What is claimed first is the prefix.
        """
        is_prefix = self.length == 0
        first, end = self._open(new)
        if is_real_BL is None:
            self._is_real_BS[:, first:end] = True
            step = torch.arange(1, new + 1, device=self._count_B.device)
            position_BL = self._count_B[:, None] + step
        else:
            self._has_padding = True
            self._is_real_BS[:, first:end] = is_real_BL
            position_BL = self._count_B[:, None] + is_real_BL.cumsum(1)
        self._position_BS[:, first:end] = position_BL
        self._count_B = position_BL[:, -1]
        whole = self._is_real_BS[:, None, None, :end] if self._has_padding else None
        if is_prefix or self._window is None or end <= self._window:
            return position_BL, AttentionMasks(whole, whole)
        return position_BL, AttentionMasks(
            whole, self._near(position_BL, self._is_real_BS[:, None, :end])
        )

    def fork(self, branch_BL: Tensor) -> tuple[Tensor, AttentionMasks]:
        """Open slots for several continuations side by side; their positions and what they see.

        `branch_BL` numbers the continuation that each new slot belongs to, -1 for padding. Each
        sees the slots before the fork and the earlier ones of its own branch, and positions go on
        from the fork in each. Nothing can be claimed after a fork until `rewind`.
        """
        first, end = self._open(branch_BL.shape[1])
        self._is_forked = True
        same_BLL = branch_BL[:, :, None] == branch_BL[:, None, :]
        own_BLL = same_BLL.tril()  # padding sees padding, and nothing reads what it saw
        position_BL = self._count_B[:, None] + own_BLL.sum(-1)
        self._position_BS[:, first:end] = position_BL
        before_BLS = self._is_real_BS[:, None, :first].expand(-1, end - first, -1)
        sees_BLS = torch.cat([before_BLS, own_BLL], dim=2)
        whole = sees_BLS[:, None]
        return position_BL, AttentionMasks(whole, self._near(position_BL, sees_BLS))

    def rewind(self, slots: int) -> None:
        """Forget a fork: what was there before it are so many slots."""
        self.length = slots
        self._is_forked = False

    def write(self, layer: int, key_BKLH: Tensor, value_BKLH: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's keys and values in the claimed slots; return all so far."""
        key, value = self._memory[layer]
        key[:, :, self._slots_before : self.length] = key_BKLH
        value[:, :, self._slots_before : self.length] = value_BKLH
        return key[:, :, : self.length], value[:, :, : self.length]

    def claim_next(self) -> tuple[Tensor, AttentionMasks]:
        """Open one slot in every row, for the token that each was given."""
        return self.claim(None, 1)

    @property
    def counts(self) -> list[int]:
        """How many real slots each row has."""
        found: list[int] = self._count_B.tolist()
        return found

    def row(self, row: int) -> Tensor:
        """A row's keys and values in its real slots alone, (depth, 2, K, slots, H)."""
        memory = self._memory[:, :, row, :, : self.length]
        return (
            memory[:, :, :, self._is_real_BS[row, : self.length]] if self._has_padding else memory
        )

    def _open(self, new: int) -> tuple[int, int]:
        if self._is_forked:
            raise ValueError("the cache is forked: rewind it first")
        first, end = self.length, self.length + new
        if end > self._memory.shape[4]:
            raise ValueError(f"the cache has {self._memory.shape[4]} slots; {end} were asked for")
        self._slots_before, self.length = first, end
        return first, end

    def _near(self, position_BL: Tensor, sees_BLS: Tensor) -> Tensor:
        """Of what is seen, the last `window` positions."""
        if self._window is None:
            return sees_BLS[:, None]
        position_BS = self._position_BS[:, : sees_BLS.shape[2]]
        within_BLS = position_BS[:, None, :] > position_BL[:, :, None] - self._window
        return (sees_BLS & within_BLS)[:, None]
