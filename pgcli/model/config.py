"""The sizes of a PaliGemma model as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower's sizes."""

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    patch_size: int
    resolution: int
    norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def num_patches(self) -> int:
        return (self.resolution // self.patch_size) ** 2


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The decoder's sizes. The last six fields are used by Gemma 2 only.

    `query_pre_attn_scalar` to the power of -1/2 scales the attention scores; None means `head_dim`.
    `attn_softcap` and `final_softcap` bound attention scores and logits. In the layers marked in
    `sliding_layers`, a generated token sees the last `sliding_window` positions, its own included.
    `post_norms` says whether the outputs of attention and MLP are normalized too.
    """

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    max_positions: int = 8192
    query_pre_attn_scalar: int | None = None
    attn_softcap: float | None = None
    final_softcap: float | None = None
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] = ()
    post_norms: bool = False

    @property
    def query_scale(self) -> float:
        """The factor that attention scores are multiplied by."""
        scale: float = (self.query_pre_attn_scalar or self.head_dim) ** -0.5
        return scale

    def is_sliding(self, layer: int) -> bool:
        """Whether generated tokens see only the sliding window in this layer."""
        has_window = self.sliding_window is not None and bool(self.sliding_layers)
        return has_window and self.sliding_layers[layer]


@dataclass(frozen=True, slots=True)
class PaliGemmaConfig:
    """The sizes of both towers, and the token ids that generation needs.

    `stop_tokens` end an answer. `tied` says whether the LM head shares the embedding's weights.
    """

    vision: VisionConfig
    decoder: DecoderConfig
    image_token_id: int
    stop_tokens: tuple[int, ...] = (1,)
    tied: bool = True

    @property
    def image_tokens(self) -> int:
        """The number of slots that one image takes."""
        return self.vision.num_patches

    @property
    def max_answer_tokens(self) -> int:
        """The longest answer after one image and the shortest prompt: bos and newline."""
        return self.decoder.max_positions - self.image_tokens - 2
