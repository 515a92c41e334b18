"""SigLIP, CLIP and ViT: vision towers, classifiers, and pairs of an image and a text tower.

B images or texts · C channels · R resolution · P patches (and the class token) · T tokens ·
D width · N heads · H head size · K classes · E embedding
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pgcli.model.attention import attention_weights
from pgcli.model.config import (
    Activation,
    ClassifierConfig,
    TextConfig,
    TwoTowersConfig,
    VisionConfig,
)


def activate(x: Tensor, activation: Activation) -> Tensor:
    """GELU: exact, in its tanh approximation, or CLIP's sigmoid approximation ("quick")."""
    if activation == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


class SiglipEmbeddings(nn.Module):
    """Patch embeddings plus position embeddings, after the class token if there is one."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        size = config.patch_size
        # stored as a convolution, computed as a matrix product, so that cuDNN cannot use tf32
        self.patch_embedding = nn.Conv2d(
            3, config.width, kernel_size=size, stride=size, bias=config.patch_bias
        )
        self.class_embedding = (
            nn.Parameter(torch.zeros(config.width)) if config.class_token else None
        )
        self.position_embedding = nn.Embedding(config.num_positions, config.width)
        self.dropout = config.dropout

    def forward(self, pixels_BCRR: Tensor) -> Tensor:
        size = self.patch_embedding.kernel_size[0]
        # pixels that do not fill a patch are dropped: patches of 14 use 378 of 384
        covered = pixels_BCRR.shape[-1] // size * size
        pixels_BCRR = pixels_BCRR[:, :, :covered, :covered]
        rows = torch.unflatten(torch.unflatten(pixels_BCRR, 3, (-1, size)), 2, (-1, size))
        patch_BPx = rows.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        weight = self.patch_embedding.weight.flatten(1)
        x_BPD = F.linear(patch_BPx, weight, self.patch_embedding.bias)
        if self.class_embedding is not None:
            x_BPD = torch.cat([self.class_embedding.expand(len(x_BPD), 1, -1), x_BPD], dim=1)
        return F.dropout(x_BPD + self.position_embedding.weight, self.dropout, self.training)


class SiglipAttention(nn.Module):
    """Self-attention of all positions; queries, keys and values come from one matrix product."""

    def __init__(self, config: VisionConfig | TextConfig, *, causal: bool = False):
        super().__init__()
        self.num_heads, self.causal = config.num_heads, causal
        self.qkv_proj = nn.Linear(config.width, 3 * config.width)
        self.out_proj = nn.Linear(config.width, config.width)
        self.dropout = config.attention_dropout

    def forward(self, x_BPD: Tensor) -> Tensor:
        query_BNPH, key_BNPH, value_BNPH = self.project(x_BPD)
        out_BNPH = F.scaled_dot_product_attention(
            query_BNPH,
            key_BNPH,
            value_BNPH,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        out_BPD: Tensor = self.out_proj(out_BNPH.transpose(1, 2).flatten(2))
        return out_BPD

    def weights(self, x_BPD: Tensor) -> Tensor:
        """The attention weights (B, N, P, P) of all positions to all, in float32."""
        query_BNPH, key_BNPH, _ = self.project(x_BPD)
        return attention_weights(query_BNPH.transpose(1, 2), key_BNPH)

    def project(self, x_BPD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, N, P, H) each."""
        qkv = self.qkv_proj(x_BPD).unflatten(-1, (3, self.num_heads, -1))
        query_BNPH, key_BNPH, value_BNPH = qkv.permute(2, 0, 3, 1, 4)
        return query_BNPH, key_BNPH, value_BNPH


class SiglipMLP(nn.Module):
    """Two linear layers around GELU."""

    def __init__(self, config: VisionConfig | TextConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.mlp_dim)
        self.fc2 = nn.Linear(config.mlp_dim, config.width)
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(activate(self.fc1(x), self.activation))
        return out


class SiglipEncoderLayer(nn.Module):
    """Attention and MLP with pre-norm, each with a residual connection."""

    def __init__(self, config: VisionConfig | TextConfig, *, causal: bool = False):
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.self_attn = SiglipAttention(config, causal=causal)
        self.layer_norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = SiglipMLP(config)
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.self_attn(self.layer_norm1(x)), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.layer_norm2(x)), self.dropout, self.training)


class SiglipVisionModel(nn.Module):
    """The vision tower without pooling: one vector per patch, in row-major order.

    With `gradient_checkpointing`, a layer's activations are recomputed in the backward pass.
    """

    gradient_checkpointing = False

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.embeddings = SiglipEmbeddings(config)
        self.pre_layernorm = (
            nn.LayerNorm(config.width, eps=config.norm_eps) if config.pre_norm else None
        )
        self.layers = nn.ModuleList(SiglipEncoderLayer(config) for _ in range(config.depth))
        self.post_layernorm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def last_layer(self, pixels_BCRR: Tensor) -> Tensor:
        """The last layer's outputs (B, P, D) before the final norm."""
        x_BPD: Tensor = self.embeddings(pixels_BCRR)
        if self.pre_layernorm is not None:
            x_BPD = self.pre_layernorm(x_BPD)
        for layer in self.layers:
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_BPD = checkpoint(layer, x_BPD, use_reentrant=False)
            else:
                x_BPD = layer(x_BPD)
        return x_BPD

    def forward(self, pixels_BCRR: Tensor) -> Tensor:
        """Patch features (B, P, D) of normalized images, -1 ... 1 for SigLIP."""
        out: Tensor = self.post_layernorm(self.last_layer(pixels_BCRR))
        return out


def normalize_pixels(pixels_BRRC: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 images (B, R, R, C) to normalized ones (B, C, R, R), rounded as in transformers."""
    scaled = pixels_BRRC.to(torch.promote_types(dtype, torch.float32)) * (1 / 255)
    return ((scaled - mean) / std).permute(0, 3, 1, 2).to(dtype)


class ImageClassifier(nn.Module):
    """ViT, and SigLIP and CLIP with a classification head."""

    def __init__(self, config: ClassifierConfig):
        super().__init__()
        self.config = config
        self.vision = SiglipVisionModel(config.vision)
        self.classifier = nn.Linear(config.vision.width, len(config.labels))

    def forward(self, pixels_BCRR: Tensor) -> Tensor:
        """Logits (B, K) of normalized images."""
        out_BK: Tensor = self.classifier(self.features(pixels_BCRR))
        return out_BK

    def features(self, pixels_BCRR: Tensor) -> Tensor:
        """The inputs (B, D) of the head: class tokens, or means of the patches."""
        if self.config.family != "clip":
            x_BPD: Tensor = self.vision(pixels_BCRR)
            return x_BPD[:, 0] if self.config.family == "vit" else x_BPD.mean(dim=1)
        return self.vision.last_layer(pixels_BCRR)[:, 1:].mean(dim=1)


class TwoTowers(nn.Module):
    """A vision tower and a text tower. Embeddings have a length of 1."""

    def __init__(self, config: TwoTowersConfig):
        super().__init__()
        self.config = config
        is_clip = config.family == "clip"
        self.vision = SiglipVisionModel(config.vision)
        self.image_pooling = AttentionPooling(config.vision) if config.family == "siglip" else None
        self.image_projection = (
            nn.Linear(config.vision.width, config.embedding_dim, bias=False) if is_clip else None
        )
        self.text = self.text_projection = self.logit_scale = self.logit_bias = None
        if config.text is not None:
            self.text = TextTower(config.text)
            self.text_projection = nn.Linear(
                config.text.width, config.embedding_dim, bias=not is_clip
            )
            self.logit_scale = nn.Parameter(torch.zeros(()))
            self.logit_bias = None if is_clip else nn.Parameter(torch.zeros(()))

    def encode_images(self, pixels_BCRR: Tensor) -> Tensor:
        """Embeddings (B, E) of normalized images."""
        x_BPD: Tensor = self.vision(pixels_BCRR)
        if self.image_pooling is not None:
            return _normalize(self.image_pooling(x_BPD))
        if self.image_projection is not None:
            return _normalize(self.image_projection(x_BPD[:, 0]))
        return _normalize(x_BPD.mean(dim=1))

    def encode_texts(self, token_BT: Tensor) -> Tensor:
        """Embeddings (B, E) of texts, padded on the right as the checkpoint was trained."""
        if self.text is None or self.text_projection is None:
            raise ValueError("this model has no text tower")
        return _normalize(self.text_projection(self.text(token_BT)))

    def logits(self, cosine: Tensor) -> Tensor:
        """Scaled cosines, plus the bias if there is one; SigLIP's sigmoid of them is a score."""
        if self.logit_scale is None:
            raise ValueError("this model has no text tower")
        scaled = cosine * self.logit_scale.exp()
        return scaled if self.logit_bias is None else scaled + self.logit_bias


def _normalize(embedding_BE: Tensor) -> Tensor:
    """The embeddings scaled to length 1, in float32, as bfloat16 would round it to a percent."""
    return F.normalize(
        embedding_BE.to(torch.promote_types(embedding_BE.dtype, torch.float32)), dim=-1
    )


class TextTower(nn.Module):
    """Token and position embeddings, an encoder, and pooling.

    A text's embedding comes from its end token (CLIP) or from the last position (SigLIP).
    """

    def __init__(self, config: TextConfig):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.max_positions, config.width)
        self.layers = nn.ModuleList(
            SiglipEncoderLayer(config, causal=config.causal) for _ in range(config.depth)
        )
        self.final_layer_norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, token_BT: Tensor) -> Tensor:
        """Features (B, D) of texts of T tokens, at most `max_positions`."""
        x_BTD = self.token_embedding(token_BT)
        x_BTD = x_BTD + self.position_embedding.weight[: token_BT.shape[1]]
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        if self.config.causal:
            last_B = self._end_of_text(token_BT)
            x_BD = x_BTD[torch.arange(len(x_BTD), device=x_BTD.device), last_B]
        else:
            x_BD = x_BTD[:, -1]
        out_BD: Tensor = self.final_layer_norm(x_BD)
        return out_BD

    def _end_of_text(self, token_BT: Tensor) -> Tensor:
        """The position of each text's end token (B,)."""
        eos = self.config.eos_token
        return (token_BT if eos is None else (token_BT == eos).int()).argmax(dim=-1)


class AttentionPooling(nn.Module):
    """SigLIP's head: a learned probe attends to all patches, then an MLP."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(1, 1, config.width))
        self.attention = ProbeAttention(config)
        self.layernorm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = SiglipMLP(config)

    def forward(self, x_BPD: Tensor) -> Tensor:
        """One vector (B, D) for each image."""
        x_B1D: Tensor = self.attention(self.probe.expand(len(x_BPD), -1, -1), x_BPD)
        x_B1D = x_B1D + self.mlp(self.layernorm(x_B1D))
        return x_B1D[:, 0]


class ProbeAttention(nn.Module):
    """Attention of queries to other vectors, with the parameters of `nn.MultiheadAttention`."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.num_heads = config.num_heads
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * config.width, config.width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * config.width))
        self.out_proj = nn.Linear(config.width, config.width)

    def forward(self, query_BQD: Tensor, x_BPD: Tensor) -> Tensor:
        width = x_BPD.shape[-1]
        query = F.linear(query_BQD, self.in_proj_weight[:width], self.in_proj_bias[:width])
        key_value = F.linear(x_BPD, self.in_proj_weight[width:], self.in_proj_bias[width:])
        query_BNQH = torch.unflatten(query, -1, (self.num_heads, -1)).transpose(1, 2)
        key_value = torch.unflatten(key_value, -1, (2, self.num_heads, -1))
        key_BNPH, value_BNPH = key_value.permute(2, 0, 3, 1, 4)
        out_BNQH = F.scaled_dot_product_attention(query_BNQH, key_BNPH, value_BNPH)
        out_BQD: Tensor = self.out_proj(out_BNQH.transpose(1, 2).flatten(2))
        return out_BQD
