"""The roofline model: FLOP and bytes of every stage, and the least time for them.

A multiply-add is 2 FLOP. Bytes are the weights, read once a pass, and the KV cache; activations are
omitted, as if they stayed in the processor's caches. All times are lower bounds: computing and
reading overlap within a pass, and passes are sequential.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgcli.engine.memory import cache_bytes
from pgcli.model.config import DecoderConfig, PaliGemmaConfig


@dataclass(frozen=True, slots=True)
class PeakRates:
    """The peak rates of a machine."""

    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class PassCost:
    """The cost of a pass."""

    flops: int
    bytes: int

    def seconds(self, rates: PeakRates) -> float:
        """The least time: the larger of computing and reading, which overlap."""
        return max(self.flops / rates.flops_per_second, self.bytes / rates.bytes_per_second)


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds by stage: image encoding, prefill, and decoding after the first token."""

    vision: float
    prefill: float
    decode: float

    @property
    def total(self) -> float:
        return self.vision + self.prefill + self.decode


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows of one image and one prompt each, with the lengths of prompts and answers.

    Unless `trimmed`, the last layer is computed for every slot of the prompt, as in transformers,
    although only the last slot's output is used.
    """

    batch: int
    prompt_tokens: int
    lengths: Sequence[int]
    itemsize: int
    trimmed: bool = True


def limit(config: PaliGemmaConfig, work: Workload, rates: PeakRates) -> Stages:
    """The least seconds for the workload with full batches."""
    rows, itemsize = min(work.batch, len(work.lengths)), work.itemsize
    passes = len(work.lengths) / rows
    slots = config.image_tokens + work.prompt_tokens
    read = prefill(config, rows, work.prompt_tokens, itemsize, trimmed=work.trimmed)
    decode = 0.0
    for number in range(1, max(work.lengths)):
        alive = sum(length > number for length in work.lengths)
        decode += alive / rows * step(config, rows, slots + number, itemsize).seconds(rates)
    return Stages(
        passes * vision(config, rows, itemsize).seconds(rates), passes * read.seconds(rates), decode
    )


def vision(config: PaliGemmaConfig, rows: int, itemsize: int) -> PassCost:
    """The cost of the vision tower and the projector for `rows` images."""
    tower, patches = config.vision, config.vision.num_patches
    layers = tower.depth * (4 * tower.width**2 + 2 * tower.width * tower.mlp_dim)
    weights = layers + tower.width * (3 * tower.patch_size**2 + config.decoder.width)
    attention = 4 * patches**2 * tower.width * tower.depth
    return PassCost(rows * (2 * patches * weights + attention), weights * itemsize)


def prefill(
    config: PaliGemmaConfig, rows: int, prompt_tokens: int, itemsize: int, *, trimmed: bool
) -> PassCost:
    """The cost of the decoder over images and prompts, and of the first token's logits."""
    decoder, slots = config.decoder, config.image_tokens + prompt_tokens
    keys, others = _key_value_weights(decoder), _other_weights(decoder)
    full, last = (decoder.depth - 1, 1) if trimmed else (decoder.depth, 0)
    flops = 2 * slots * (decoder.depth * keys + full * others) + 2 * last * others
    flops += _attention(decoder, full * slots**2 + last * slots)
    return PassCost(
        rows * (flops + 2 * _lm_head_params(decoder)), _decoder_params(decoder) * itemsize
    )


def step(config: PaliGemmaConfig, rows: int, slots: int, itemsize: int) -> PassCost:
    """The cost of one more token for every row, with `slots` slots each, including its own.

    Sliding windows are ignored: at every resolution they exclude less than a hundredth of a row.
    """
    decoder = config.decoder
    flops = 2 * _decoder_params(decoder) + _attention(decoder, decoder.depth * slots)
    # reads the cache, writes the new slot, writes and reads the logits
    moved = rows * (cache_bytes(config, itemsize) * (slots + 1) + 2 * itemsize * decoder.vocab_size)
    return PassCost(rows * flops, _decoder_params(decoder) * itemsize + moved)


def _key_value_weights(decoder: DecoderConfig) -> int:
    """The number of weights of a layer's key and value projections."""
    return 2 * decoder.width * decoder.num_kv_heads * decoder.head_dim


def _other_weights(decoder: DecoderConfig) -> int:
    """The number of a layer's other weights: query and output projections, and the MLP."""
    heads = decoder.num_heads * decoder.head_dim
    return 2 * decoder.width * heads + 3 * decoder.width * decoder.mlp_dim


def _lm_head_params(decoder: DecoderConfig) -> int:
    return decoder.width * decoder.vocab_size


def _decoder_params(decoder: DecoderConfig) -> int:
    layer = _key_value_weights(decoder) + _other_weights(decoder)
    return decoder.depth * layer + _lm_head_params(decoder)


def _attention(decoder: DecoderConfig, pairs: int) -> int:
    """FLOP of the scores and values of `pairs` pairs of a query and a key, in all layers."""
    return 4 * pairs * decoder.num_heads * decoder.head_dim
