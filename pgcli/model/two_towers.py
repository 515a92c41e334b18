"""SigLIP and CLIP: embeddings of images and texts; their dot products are cosine similarities.

B images or texts · P patches · T tokens · D width · N heads · H head size · E embedding
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.model.config import TextConfig, TwoTowersConfig, VisionConfig
from pgcli.model.siglip import SiglipEncoderLayer, SiglipMLP, SiglipVisionModel


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
