"""Translates tensor names between checkpoints and the models: a table for each layout."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

#: Pairs of a name in a checkpoint and in the model.
Pairs = tuple[tuple[str, str], ...]
#: A fused parameter, and the stored tensors that fill its rows, each with its share of them.
Fused = tuple[str, tuple[tuple[str, int], ...]]
QKV: Fused = (".qkv_proj.", ((".q_proj.", 1), (".k_proj.", 1), (".v_proj.", 1)))
GATE_UP: Fused = (".gate_up_proj.", ((".gate_proj.", 1), (".up_proj.", 1)))


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The names of a model's tensors in one layout of checkpoints.

    `prefixes` are pairs of beginnings of names, of which the first that fits counts in both
    directions; of several for one name of the model, the others are those of other versions, which
    are read. `parts` are pairs of what is replaced after the prefix. Tensors of a name that matches
    `unused` are skipped. `fused` are the parameters that are stored in several tensors. Matrices of
    the model in `transposed` are stored transposed.
    """

    prefixes: Pairs
    parts: Pairs = ()
    unused: str = r"(?!)"
    fused: Sequence[Fused] = (QKV, GATE_UP)
    transposed: Collection[str] = ()

    def canonical(self, name: str) -> str:
        """The model's name for a checkpoint's tensor; the same name if it is not in the table."""
        for prefix, model_prefix in self.prefixes:
            if name.startswith(prefix):
                rest = name.removeprefix(prefix)
                for part, model_part in self.parts:
                    rest = rest.replace(part, model_part)
                return model_prefix + rest
        return name

    def hub_name(self, name: str) -> str:
        """The checkpoint's name for a tensor of the model. Raises ValueError if there is none."""
        for prefix, model_prefix in self.prefixes:
            if name.startswith(model_prefix):
                rest = name.removeprefix(model_prefix)
                for part, model_part in self.parts:
                    rest = rest.replace(model_part, part)
                return prefix + rest
        raise ValueError(f"{name} is not a tensor of the model")

    def is_unused(self, name: str) -> bool:
        """Whether the checkpoint's tensor is of a part that the model does not have."""
        return re.search(self.unused, name) is not None


# --- PaliGemma: as published, and as modules are named in transformers today, which PEFT writes

_PUBLISHED: Pairs = (
    ("vision_tower.vision_model.encoder.layers.", "vision.layers."),
    ("vision_tower.vision_model.", "vision."),
    ("multi_modal_projector.linear.", "projector."),
    ("language_model.lm_head.", "decoder.lm_head."),
    ("language_model.model.", "decoder."),
)
_MODULES: Pairs = (
    ("model.vision_tower.encoder.layers.", "vision.layers."),
    ("model.vision_tower.vision_model.encoder.layers.", "vision.layers."),
    ("model.vision_tower.vision_model.", "vision."),
    ("model.vision_tower.", "vision."),
    ("model.multi_modal_projector.linear.", "projector."),
    ("lm_head.", "decoder.lm_head."),
    ("model.language_model.", "decoder."),
)
_WITHOUT_HEAD: Pairs = (
    ("vision_tower.encoder.layers.", "vision.layers."),
    ("vision_tower.", "vision."),
    ("language_model.", "decoder."),
)
PALIGEMMA = TensorNames((*_PUBLISHED, *_MODULES, *_WITHOUT_HEAD))
PALIGEMMA_MODULES = TensorNames((*_MODULES, *_PUBLISHED, *_WITHOUT_HEAD))
#: Of a PaliGemma checkpoint the vision tower alone.
PALIGEMMA_VISION = replace(
    PALIGEMMA, unused=r"^(model\.)?(multi_modal_projector|language_model)\.|^lm_head\."
)

# --- SigLIP, CLIP and ViT in the layout of transformers

_VISION: Pairs = (
    ("vision_model.head.", "image_pooling."),
    ("vision_model.pre_layrnorm.", "vision.pre_layernorm."),
    ("vision_model.encoder.layers.", "vision.layers."),
    ("vision_model.", "vision."),
    # saved on its own
    ("head.", "image_pooling."),
    ("encoder.layers.", "vision.layers."),
    ("embeddings.", "vision.embeddings."),
    ("post_layernorm.", "vision.post_layernorm."),
)
_TEXT: Pairs = (
    ("text_model.encoder.layers.", "text.layers."),
    ("text_model.final_layer_norm.", "text.final_layer_norm."),
    ("text_model.embeddings.", "text."),
    ("logit_", "logit_"),
)
SIGLIP = TensorNames(
    (*_VISION, ("text_model.head.", "text_projection."), *_TEXT), unused=r"\.position_ids$"
)
CLIP = TensorNames(
    (
        *_VISION,
        ("visual_projection.", "image_projection."),
        ("text_projection.", "text_projection."),
        *_TEXT,
    ),
    unused=r"\.position_ids$",
)
CLASSIFIER = TensorNames(
    (*_VISION, ("classifier.", "classifier.")),
    unused=r"^(vision_model\.head|text_model|text_projection|visual_projection)\.|\.position_ids$",
)
VIT = TensorNames(
    prefixes=(
        ("vit.encoder.layer.", "vision.layers."),
        ("vit.encoder.layers.", "vision.layers."),
        ("vit.layers.", "vision.layers."),
        ("vit.layernorm.", "vision.post_layernorm."),
        ("vit.embeddings.cls_token", "vision.embeddings.class_embedding"),
        ("vit.embeddings.position_embeddings", "vision.embeddings.position_embedding.weight"),
        ("vit.embeddings.patch_embeddings.projection.", "vision.embeddings.patch_embedding."),
        ("classifier.", "classifier."),
    ),
    parts=(
        # in the names of transformers 4, which transformers 5 writes too
        (".attention.output.dense.", ".self_attn.out_proj."),
        (".attention.attention.query.", ".self_attn.q_proj."),
        (".attention.attention.key.", ".self_attn.k_proj."),
        (".attention.attention.value.", ".self_attn.v_proj."),
        (".intermediate.dense.", ".mlp.fc1."),
        (".output.dense.", ".mlp.fc2."),
        (".layernorm_before.", ".layer_norm1."),
        (".layernorm_after.", ".layer_norm2."),
        # in those of transformers 5
        (".attention.o_proj.", ".self_attn.out_proj."),
        (".attention.q_proj.", ".self_attn.q_proj."),
        (".attention.k_proj.", ".self_attn.k_proj."),
        (".attention.v_proj.", ".self_attn.v_proj."),
    ),
    unused=r"^vit\.pooler\.|\.mask_token$",
)

# --- CLIP and SigLIP in the layout of open_clip

_OPEN_CLIP_TEXT: Pairs = (
    ("text.transformer.resblocks.", "text.layers."),
    ("text.token_embedding.", "text.token_embedding."),
    ("text.positional_embedding", "text.position_embedding.weight"),
    ("text.ln_final.", "text.final_layer_norm."),
    # CLIP's first files
    ("transformer.resblocks.", "text.layers."),
    ("token_embedding.", "text.token_embedding."),
    ("positional_embedding", "text.position_embedding.weight"),
    ("ln_final.", "text.final_layer_norm."),
    ("logit_", "logit_"),
)
_OPEN_CLIP_PARTS: Pairs = (
    (".attn.in_proj_", ".self_attn.qkv_proj."),
    (".attn.out_proj.", ".self_attn.out_proj."),
    (".ln_1.", ".layer_norm1."),
    (".ln_2.", ".layer_norm2."),
    (".mlp.c_fc.", ".mlp.fc1."),
    (".mlp.c_proj.", ".mlp.fc2."),
)
OPEN_CLIP = TensorNames(
    prefixes=(
        ("text_projection", "text_projection.weight"),
        ("text.text_projection", "text_projection.weight"),
        ("visual.proj", "image_projection.weight"),
        ("visual.class_embedding", "vision.embeddings.class_embedding"),
        ("visual.positional_embedding", "vision.embeddings.position_embedding.weight"),
        ("visual.conv1.", "vision.embeddings.patch_embedding."),
        ("visual.ln_pre.", "vision.pre_layernorm."),
        ("visual.ln_post.", "vision.post_layernorm."),
        ("visual.transformer.resblocks.", "vision.layers."),
        *_OPEN_CLIP_TEXT,
    ),
    parts=_OPEN_CLIP_PARTS,
    unused=r"^(text\.)?attn_mask$",
    fused=(),
    transposed=("text_projection.weight", "image_projection.weight"),
)
OPEN_CLIP_SIGLIP = TensorNames(
    prefixes=(
        ("text.text_projection.", "text_projection."),
        ("visual.trunk.attn_pool.latent", "image_pooling.probe"),
        ("visual.trunk.attn_pool.q.", "image_pooling.attention.q_"),
        ("visual.trunk.attn_pool.kv.", "image_pooling.attention.kv_"),
        ("visual.trunk.attn_pool.proj.", "image_pooling.attention.out_proj."),
        ("visual.trunk.attn_pool.norm.", "image_pooling.layernorm."),
        ("visual.trunk.attn_pool.", "image_pooling."),
        ("visual.trunk.pos_embed", "vision.embeddings.position_embedding.weight"),
        ("visual.trunk.patch_embed.proj.", "vision.embeddings.patch_embedding."),
        ("visual.trunk.norm.", "vision.post_layernorm."),
        ("visual.trunk.blocks.", "vision.layers."),
        *_OPEN_CLIP_TEXT,
    ),
    parts=(
        (".attn.qkv.", ".self_attn.qkv_proj."),
        (".attn.proj.", ".self_attn.out_proj."),
        (".norm1.", ".layer_norm1."),
        (".norm2.", ".layer_norm2."),
        *_OPEN_CLIP_PARTS,
    ),
    fused=(
        (
            "image_pooling.attention.in_proj_",
            (("image_pooling.attention.q_", 1), ("image_pooling.attention.kv_", 2)),
        ),
    ),
)
