"""The sizes of the models as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu_tanh", "gelu", "quick_gelu"]


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower's sizes, and the differences between SigLIP, CLIP and ViT.

    CLIP and ViT put a class token before the patches. CLIP's patch embedding has no bias, and it
    normalizes the embeddings (`pre_norm`). Dropout applies in training.
    """

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    patch_size: int
    resolution: int
    norm_eps: float = 1e-6
    activation: Activation = "gelu_tanh"
    class_token: bool = False
    patch_bias: bool = True
    pre_norm: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def num_patches(self) -> int:
        return (self.resolution // self.patch_size) ** 2

    @property
    def num_positions(self) -> int:
        """The patches, and the class token if there is one."""
        return self.num_patches + self.class_token


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The sizes of a text tower.

    CLIP's is causal and pools the first `eos_token` of a text, or its highest token id if that is
    None (checkpoints with `eos_token_id` 2). SigLIP's is bidirectional and pools the last position.
    """

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    vocab_size: int
    max_positions: int
    norm_eps: float = 1e-6
    activation: Activation = "gelu_tanh"
    causal: bool = False
    eos_token: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0


@dataclass(frozen=True, slots=True)
class TwoTowersConfig:
    """The sizes of a two-tower model; `text` is None for a vision tower alone.

    `family` says how features become embeddings of `embedding_dim` values: SigLIP pools patches by
    attention from a learned probe, CLIP projects the class token, and "mean" averages the patches
    of a vision tower without a head, such as PaliGemma's. With `has_sigmoid` the sigmoid of a logit
    is a score; SigLIP towers that were trained with CLIP's loss lack it.
    """

    family: Literal["siglip", "clip", "mean"]
    vision: VisionConfig
    text: TextConfig | None
    embedding_dim: int
    has_sigmoid: bool = True


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    """A vision tower with a linear layer on its class token (ViT) or the mean of its patches.

    The mean is over the last layer's outputs, normalized for SigLIP but not for CLIP. `labels` has
    the names of the classes.
    """

    family: Literal["vit", "siglip", "clip"]
    vision: VisionConfig
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The decoder's sizes, and the differences between Gemma, Gemma 2 and Gemma 3.

    `query_pre_attn_scalar` to the power of -1/2 scales the attention scores; None means `head_dim`.
    `attn_softcap` and `final_softcap` bound attention scores and logits. In the layers marked in
    `sliding_layers`, a generated token attends to the last `sliding_window` positions, including
    its own.
    `post_norms` says whether the outputs of attention and MLP are normalized too.

    Gemma 3 only: with `qk_norm`, queries and keys are normalized before their rotation. Sliding
    layers rotate with the base `local_rope_theta`, and the frequencies of the other layers are
    divided by `rope_factor`. Positions begin at `first_position`. With `causal_prompt` a prompt is
    causal, but the slots of an image see each other; else all of it sees itself.
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
    qk_norm: bool = False
    local_rope_theta: float | None = None
    rope_factor: float = 1.0
    first_position: int = 1
    causal_prompt: bool = False

    @property
    def query_scale(self) -> float:
        """The factor that attention scores are multiplied by."""
        scale: float = (self.query_pre_attn_scalar or self.head_dim) ** -0.5
        return scale

    def is_sliding(self, layer: int) -> bool:
        """Whether generated tokens attend only to the sliding window in this layer."""
        has_window = self.sliding_window is not None and bool(self.sliding_layers)
        return has_window and self.sliding_layers[layer]


@dataclass(frozen=True, slots=True)
class PaliGemmaConfig:
    """The sizes of both towers, and the token ids that generation needs.

    `stop_tokens` end an answer. With `tied`, the LM head shares the embedding's weights. The
    projector averages patches to a grid of `pooled_side` squared features; None keeps all patches.
    `image_marks` are the tokens before and after an image, if any. ColPali makes a vector of
    `vector_size` values of each slot, in place of logits.
    """

    vision: VisionConfig
    decoder: DecoderConfig
    image_token_id: int
    stop_tokens: tuple[int, ...] = (1,)
    tied: bool = True
    pooled_side: int | None = None
    image_marks: tuple[int, int] | None = None
    vector_size: int | None = None

    @property
    def image_tokens(self) -> int:
        """The number of slots that one image takes."""
        return self.vision.num_patches if self.pooled_side is None else self.pooled_side**2

    @property
    def template_tokens(self) -> int:
        """The tokens around an image and its prompt, at most, besides bos and a newline."""
        return 0 if self.image_marks is None else 14

    @property
    def max_answer_tokens(self) -> int:
        """The longest answer after one image and the shortest prompt."""
        return self.decoder.max_positions - self.image_tokens - self.template_tokens - 2
