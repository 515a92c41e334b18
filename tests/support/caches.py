"""Small KV caches without a model."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pgcli.model.config import DecoderConfig
from pgcli.model.kv_cache import KVCache


def unit_cache(
    max_rows: int,
    *,
    depth: int = 3,
    num_kv_heads: int = 2,
    head_dim: int = 4,
    window: int | None = None,
    fixed_shape: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> KVCache:
    config = DecoderConfig(
        8, depth, 8, num_kv_heads, num_kv_heads, head_dim, vocab_size=9, sliding_window=window
    )
    like = torch.empty(0, dtype=dtype, device=device)
    return KVCache(config, max_rows=max_rows, like=like, fixed_shape=fixed_shape)


class OperationCounter(TorchDispatchMode):
    """Counts the operations that are no views."""

    operations = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.operations += not function.is_view
        return function(*args, **(kwargs or {}))
