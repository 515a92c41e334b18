"""Counts the kernel launches of a 3b model's passes on a GPU, without one: on meta tensors.

    python benchmarks/step_ops.py --rows 64        # and lists a step's operations

A launch is a PyTorch operation that computes or moves values. Views, which only change shapes and
strides, are counted separately, and allocations are not counted. A fused kernel, an operator of
`pgcli`, is one launch; decode attention is two, as its slots may be split; scaled dot product
attention is one, as on a GPU. A step is all the work for one new token of a batch: the cache's next
slots, all layers, the logits and the choice of the token with its log-probability. Conversions to a
tensor's own dtype do not count. A prefill's softcapped attention is counted as without
FlexAttention.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.measure import hub_config, options
from pgcli.checkpoints.config import parse_config
from pgcli.checkpoints.weights import meta_model as empty_model
from pgcli.engine.sampler import GREEDY, OutputVocabulary, Sampler, SamplingParams
from pgcli.model.cuda.optimize import fuse
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized import quantize_mlps

PROMPT_TOKENS = 16
#: Operators with more than one kernel: attention over few rows is split and merged.
KERNELS = {"pgcli::attend": 2}
ALLOCATIONS = {
    *("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"),
    *("aten::new_empty_strided", "aten::detach", "aten::lift_fresh", "aten::_unsafe_view"),
}


class LaunchCounter(TorchDispatchMode):
    """Counts the operations that run within it, by name: launches and views."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.views: Counter[str] = Counter()
        self._attention = _AttentionAsOne(self.launches)

    def __enter__(self) -> LaunchCounter:
        self._attention.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._attention.__exit__(*problem)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket._qualified_op_name
        result = function(*args, **(kwargs or {}))
        if not any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves(result)):
            return result  # a number, or a tensor on the host
        if function.is_view:
            self.views[name] += 1
        elif name not in ALLOCATIONS:
            self.launches[name] += KERNELS.get(name, 1)
        return result


class _AttentionAsOne(TorchFunctionMode):
    """Counts attention as one launch; on meta tensors it would be a dozen operations."""

    def __init__(self, launches: Counter[str]):
        super().__init__()
        self._launches = launches

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is not F.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        self._launches["attention"] += 1
        query, _, value = args[:3]
        with torch._C.DisableTorchFunction():
            return query.new_empty(*query.shape[:-1], value.shape[-1])


def meta_model(generation: int, resolution: int = 224, quantize: str = "none") -> PaliGemma:
    """The 3b model of a generation in bfloat16 without weights, optimized as on a GPU."""
    model = empty_model(parse_config(hub_config(generation, resolution))).to(torch.bfloat16)
    if quantize != "none":
        quantize_mlps(model)
    fuse(model)
    return model


@torch.no_grad()  # in inference mode, conversions would look like views
def count_prefill(model: PaliGemma, rows: int) -> LaunchCounter:
    """The operations of a prefill of `rows` rows with prompts of equal length."""
    config, cache = model.config, model.kv_cache(rows, fixed_shape=True)
    patch_BPD = torch.zeros(
        rows, config.image_tokens, config.decoder.width, dtype=torch.bfloat16, device="meta"
    )
    token_BT = torch.zeros(rows, PROMPT_TOKENS, dtype=torch.long, device="meta")
    with LaunchCounter() as counter:
        model.prefill(patch_BPD, token_BT, None, cache, new_slots=32)
    return counter


@torch.no_grad()
def count_step(model: PaliGemma, rows: int, sampling: SamplingParams = GREEDY) -> LaunchCounter:
    """The operations of a decode step of `rows` rows, after their prefill."""
    config, device = model.config, torch.device("meta")
    vocabulary = OutputVocabulary(config.decoder.vocab_size, config.image_token_id, (1,))
    sampler = Sampler(sampling, vocabulary, max_rows=rows, device=device)
    sampler.insert(slice(rows), [[0.5] * 8] * rows)
    cache = model.kv_cache(rows, fixed_shape=True)
    cache.insert(rows, config.image_tokens + PROMPT_TOKENS, new_slots=32)
    token_R = torch.zeros(rows, dtype=torch.long, device=device)
    with LaunchCounter() as counter:
        logits_BV = model.decode_step(token_R, cache)
        token_R[:rows] = sampler.select(logits_BV, slice(rows), None).token_B
    return counter


def main() -> None:
    args = options(__doc__, rows=64, quantize=("none", "fp8"))
    for generation in (1, 2):
        model = meta_model(generation, quantize=args.quantize)
        step = count_step(model, args.rows)
        counts = {
            "launches_per_step": step.launches.total(),
            "views_per_step": step.views.total(),
            "launches_prefill": count_prefill(model, args.rows).launches.total(),
        }
        print(f"generation {generation}, {args.rows} rows")
        for name, count in (*counts.items(), *step.launches.most_common()):
            print(f"  {name:40}{count:7}")


if __name__ == "__main__":
    main()
