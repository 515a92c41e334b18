"""The least work that answers take, in FLOP and bytes, and how fast a machine could do it.

A multiply-add is 2 FLOP. Bytes are the weights, read once a pass, and what the decoder remembers;
activations are left out, as if they never left the processor's caches. Every figure is thus a
lower bound on time: computing and reading overlap within a pass, and passes follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgcli.engine.memory import cache_bytes
from pgcli.model.config import DecoderConfig, PaliGemmaConfig


@dataclass(frozen=True, slots=True)
class Roof:
    """What a machine can do at best."""

    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What a pass takes of a machine."""

    flops: int
    bytes: int

    def seconds(self, roof: Roof) -> float:
        """The least time for it: computing hides reading, or the other way round."""
        return max(self.flops / roof.flops_per_second, self.bytes / roof.bytes_per_second)


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds by stage: pictures read, prompts read, tokens generated after the first."""

    vision: float
    prefill: float
    decode: float

    @property
    def total(self) -> float:
        return self.vision + self.prefill + self.decode


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows in batches, each of a picture of its own and a prompt: how long prompts and answers are.

    Unless `trimmed`, the last layer is computed for every slot of the prompt, as transformers does;
    only its last slot's output is ever used.
    """

    batch: int
    prompt_tokens: int
    lengths: Sequence[int]
    itemsize: int
    trimmed: bool = True


def limit(config: PaliGemmaConfig, work: Workload, roof: Roof) -> Stages:
    """The least seconds that the work can take where every pass is full."""
    rows, itemsize = min(work.batch, len(work.lengths)), work.itemsize
    passes = len(work.lengths) / rows
    slots = config.image_tokens + work.prompt_tokens
    read = prefill(config, rows, work.prompt_tokens, itemsize, trimmed=work.trimmed)
    decode = 0.0
    for number in range(1, max(work.lengths)):
        alive = sum(length > number for length in work.lengths)
        decode += alive / rows * step(config, rows, slots + number, itemsize).seconds(roof)
    return Stages(
        passes * vision(config, rows, itemsize).seconds(roof), passes * read.seconds(roof), decode
    )


def vision(config: PaliGemmaConfig, rows: int, itemsize: int) -> Cost:
    """The eye and the projector, for so many pictures."""
    eye, patches = config.vision, config.vision.num_patches
    layers = eye.depth * (4 * eye.width**2 + 2 * eye.width * eye.mlp_dim)
    weights = layers + eye.width * (3 * eye.patch_size**2 + config.decoder.width)
    attention = 4 * patches**2 * eye.width * eye.depth
    return Cost(rows * (2 * patches * weights + attention), weights * itemsize)


def prefill(
    config: PaliGemmaConfig, rows: int, prompt_tokens: int, itemsize: int, *, trimmed: bool
) -> Cost:
    """The decoder over pictures and prompts, and the first token's scores."""
    decoder, slots = config.decoder, config.image_tokens + prompt_tokens
    reading, writing = _keys(decoder), _rest(decoder)
    whole, last = (decoder.depth - 1, 1) if trimmed else (decoder.depth, 0)
    flops = 2 * slots * (decoder.depth * reading + whole * writing) + 2 * last * writing
    flops += _attention(decoder, whole * slots**2 + last * slots)
    return Cost(rows * (flops + 2 * _head(decoder)), _weights(decoder) * itemsize)


def step(config: PaliGemmaConfig, rows: int, slots: int, itemsize: int) -> Cost:
    """One more token for every row, each of which sees so many slots, its own included.

    Layers with a window are taken for whole: at no resolution does it hide a hundredth of a row.
    """
    decoder = config.decoder
    flops = 2 * _weights(decoder) + _attention(decoder, decoder.depth * slots)
    # what is remembered is read and the new slot written; so are the scores, written and read
    moved = rows * (cache_bytes(config, itemsize) * (slots + 1) + 2 * itemsize * decoder.vocab_size)
    return Cost(rows * flops, _weights(decoder) * itemsize + moved)


def _keys(decoder: DecoderConfig) -> int:
    """The weights of a layer that make keys and values."""
    return 2 * decoder.width * decoder.num_kv_heads * decoder.head_dim


def _rest(decoder: DecoderConfig) -> int:
    """The other weights of a layer: queries, attention's output, the MLP."""
    heads = decoder.num_heads * decoder.head_dim
    return 2 * decoder.width * heads + 3 * decoder.width * decoder.mlp_dim


def _head(decoder: DecoderConfig) -> int:
    return decoder.width * decoder.vocab_size


def _weights(decoder: DecoderConfig) -> int:
    return decoder.depth * (_keys(decoder) + _rest(decoder)) + _head(decoder)


def _attention(decoder: DecoderConfig, pairs: int) -> int:
    """FLOP for so many pairs of a query and a key, in all layers together: scores, then values."""
    return 4 * pairs * decoder.num_heads * decoder.head_dim
