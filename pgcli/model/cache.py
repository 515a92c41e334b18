"""What the decoder remembers of a batch: keys, values, which slots are real, positions and mask.

Slots lie as `[image][padding][prompt][generated]`. A prompt of 3 tokens and one of 1, two image
slots each, after two steps (`#` real, `.` padding):

    # # # # # # #
    # # . . # # #

B rows · L new slots this pass · S slots so far · K key/value heads · H head size
"""

from __future__ import annotations

import torch
from torch import Tensor


class Cache:
    """A fixed number of slots for a batch of rows; `claim` and then `write` once per layer.

    Which slots are real decides everything else: a row's position is its count of real slots,
    and no query of any row ever sees a slot that is not real. Padding therefore costs work and
    changes nothing.
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
    ):
        shape = (depth, 2, rows, num_kv_heads, slots, head_dim)
        self._memory = torch.empty(shape, dtype=dtype, device=device)
        self._is_real_BS = torch.zeros(rows, slots, dtype=torch.bool, device=device)
        self._count_B = torch.zeros(rows, dtype=torch.long, device=device)
        self._has_padding = False
        self._slots_before = 0
        self.length = 0

    @property
    def rows(self) -> int:
        return self._memory.shape[2]

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def claim(self, is_real_BL: Tensor | None, new: int) -> tuple[Tensor, Tensor | None]:
        """Open `new` slots in every row; return their positions (B, L) and the mask of all so far.

        Positions count real slots from 1, as transformers counts them. The mask is (B, 1, 1, S),
        True where a key may be seen, or None where no slot so far is padding: then every query
        sees every key and attention stays on its fastest path. `is_real_BL` None says the same
        of the new slots. Padding queries see the real slots too, so no row of scores is empty.
        """
        first, end = self.length, self.length + new
        if end > self._memory.shape[4]:
            raise ValueError(f"the cache has {self._memory.shape[4]} slots; {end} were asked for")
        if is_real_BL is None:
            self._is_real_BS[:, first:end] = True
            step = torch.arange(1, new + 1, device=self._count_B.device)
            position_BL = self._count_B[:, None] + step
        else:
            self._has_padding = True
            self._is_real_BS[:, first:end] = is_real_BL
            position_BL = self._count_B[:, None] + is_real_BL.cumsum(1)
        self._count_B = position_BL[:, -1]
        self._slots_before, self.length = first, end
        return position_BL, self._mask()

    def write(self, layer: int, key_BKLH: Tensor, value_BKLH: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's keys and values in the claimed slots; return all so far."""
        key, value = self._memory[layer]
        key[:, :, self._slots_before : self.length] = key_BKLH
        value[:, :, self._slots_before : self.length] = value_BKLH
        return key[:, :, : self.length], value[:, :, : self.length]

    def keep(self, row_B: Tensor) -> None:
        """Let every row go but these, in this order; what stays is moved together."""
        filled = self._memory[..., : self.length, :].index_select(2, row_B)
        self._memory = self._memory.new_empty(*filled.shape[:4], *self._memory.shape[4:])
        self._memory[..., : self.length, :] = filled
        self._is_real_BS = self._is_real_BS.index_select(0, row_B)
        self._count_B = self._count_B.index_select(0, row_B)

    def _mask(self) -> Tensor | None:
        return self._is_real_BS[:, None, None, : self.length] if self._has_padding else None
