"""Translates tensor names between checkpoints and the models."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

#: A fused parameter, and the stored tensors that fill its rows, each with its share of them.
Fused = tuple[str, tuple[tuple[str, int], ...]]
QKV: Fused = (".qkv_proj.", ((".q_proj.", 1), (".k_proj.", 1), (".v_proj.", 1)))
GATE_UP: Fused = (".gate_up_proj.", ((".gate_proj.", 1), (".up_proj.", 1)))


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The names of a model's tensors in checkpoints of all versions.

    `renames` are patterns, applied in order, from a checkpoint's name to the model's; `prefixes`
    pairs from the model's names to the Hub's, and `parts` pairs of what is replaced after the
    prefix. Tensors of a name that matches `unused` are skipped. `fused` are the parameters that
    are stored in several tensors. Matrices of the model in `transposed` are stored transposed.
    """

    renames: Sequence[tuple[str, str]]
    prefixes: Sequence[tuple[str, str]] = ()
    parts: Sequence[tuple[str, str]] = ()
    unused: str = r"(?!)"
    fused: Sequence[Fused] = (QKV, GATE_UP)
    transposed: Collection[str] = ()

    def canonical(self, name: str) -> str:
        """The model's name for a checkpoint's tensor."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name, count=1)
        return name

    def hub_name(self, name: str) -> str:
        """The Hub's name for a tensor of the model. Raises ValueError if there is none."""
        for prefix, hub_prefix in self.prefixes:
            if name.startswith(prefix):
                rest = name.removeprefix(prefix)
                for part, hub_part in self.parts:
                    rest = rest.replace(part, hub_part)
                return hub_prefix + rest
        raise ValueError(f"{name} is not a tensor of the model")

    def is_unused(self, name: str) -> bool:
        """Whether the checkpoint's tensor is of a part that the model does not have."""
        return re.search(self.unused, name) is not None


PALIGEMMA = TensorNames(
    renames=(
        (r"^model\.(?=vision_tower\.|multi_modal_projector\.|language_model\.)", ""),
        (r"^vision_tower\.(vision_model\.)?", "vision."),
        (r"^vision\.encoder\.", "vision."),
        (r"^multi_modal_projector\.linear\.", "projector."),
        (r"^(language_model\.)?lm_head\.", "decoder.lm_head."),
        (r"^language_model\.(model\.)?", "decoder."),
    ),
    prefixes=(
        ("vision.layers.", "vision_tower.vision_model.encoder.layers."),
        ("vision.", "vision_tower.vision_model."),
        ("projector.", "multi_modal_projector.linear."),
        ("decoder.lm_head.", "language_model.lm_head."),
        ("decoder.", "language_model.model."),
    ),
)
#: With the names that modules have in transformers today, which PEFT writes.
PALIGEMMA_MODULES = replace(
    PALIGEMMA,
    prefixes=(
        ("vision.layers.", "model.vision_tower.encoder.layers."),
        ("vision.", "model.vision_tower."),
        ("projector.", "model.multi_modal_projector.linear."),
        ("decoder.lm_head.", "lm_head."),
        ("decoder.", "model.language_model."),
    ),
)
#: Of a PaliGemma checkpoint the vision tower alone.
PALIGEMMA_VISION = TensorNames(
    renames=PALIGEMMA.renames,
    prefixes=PALIGEMMA.prefixes,
    unused=r"^(model\.)?(multi_modal_projector|language_model)\.|^lm_head\.",
)
# the vision tower of SigLIP and CLIP, also saved on its own
_VISION = (
    (r"^(?=embeddings\.|encoder\.|post_layernorm\.|head\.)", "vision_model."),
    (r"^vision_model\.head\.", "image_pooling."),
    (r"^vision_model\.pre_layrnorm\.", "vision.pre_layernorm."),
    (r"^vision_model\.(encoder\.)?", "vision."),
)
_VISION_PREFIXES = (
    ("image_pooling.", "vision_model.head."),
    ("vision.pre_layernorm.", "vision_model.pre_layrnorm."),
    ("vision.layers.", "vision_model.encoder.layers."),
    ("vision.", "vision_model."),
)
TWO_TOWERS = TensorNames(
    renames=(
        *_VISION,
        (r"^visual_projection\.", "image_projection."),
        (r"^text_model\.head\.", "text_projection."),
        (r"^text_model\.((embeddings|encoder)\.)?", "text."),
    ),
    prefixes=(
        *_VISION_PREFIXES,
        ("image_projection.", "visual_projection."),
        ("text_projection.", "text_projection."),
        ("text.layers.", "text_model.encoder.layers."),
        ("text.final_layer_norm.", "text_model.final_layer_norm."),
        ("text.", "text_model.embeddings."),
        ("logit_", "logit_"),
    ),
    unused=r"\.position_ids$",
)
# CLIP's text projection has the name that SigLIP gives to the head of its text tower
SIGLIP = replace(
    TWO_TOWERS, prefixes=(("text_projection.", "text_model.head."), *TWO_TOWERS.prefixes)
)
CLASSIFIER = TensorNames(
    renames=_VISION,
    prefixes=(*_VISION_PREFIXES, ("classifier.", "classifier.")),
    unused=r"^(vision_model\.head|text_model|text_projection|visual_projection)\.|\.position_ids$",
)
# The parts of a ViT layer in the names of transformers 4, which transformers 5 writes too, and 5.
_VIT_LAYER = (
    (r"\.attention\.output\.dense\.|\.attention\.o_proj\.", ".self_attn.out_proj."),
    (r"\.attention\.attention\.query\.|\.attention\.q_proj\.", ".self_attn.q_proj."),
    (r"\.attention\.attention\.key\.|\.attention\.k_proj\.", ".self_attn.k_proj."),
    (r"\.attention\.attention\.value\.|\.attention\.v_proj\.", ".self_attn.v_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.layernorm_before\.", ".layer_norm1."),
    (r"\.layernorm_after\.", ".layer_norm2."),
)
VIT = TensorNames(
    renames=(
        (r"^vit\.(?:encoder\.)?layers?\.", "vision.layers."),
        (r"^vit\.layernorm\.", "vision.post_layernorm."),
        (r"^vit\.embeddings\.cls_token$", "vision.embeddings.class_embedding"),
        (
            r"^vit\.embeddings\.position_embeddings$",
            "vision.embeddings.position_embedding.weight",
        ),
        (r"^vit\.embeddings\.patch_embeddings\.projection\.", "vision.embeddings.patch_embedding."),
        *_VIT_LAYER,
    ),
    prefixes=(
        ("vision.layers.", "vit.encoder.layer."),
        ("vision.post_layernorm.", "vit.layernorm."),
        ("vision.embeddings.class_embedding", "vit.embeddings.cls_token"),
        ("vision.embeddings.position_embedding.weight", "vit.embeddings.position_embeddings"),
        ("vision.embeddings.patch_embedding.", "vit.embeddings.patch_embeddings.projection."),
        ("classifier.", "classifier."),
    ),
    parts=(
        (".self_attn.out_proj.", ".attention.output.dense."),
        (".self_attn.q_proj.", ".attention.attention.query."),
        (".self_attn.k_proj.", ".attention.attention.key."),
        (".self_attn.v_proj.", ".attention.attention.value."),
        (".mlp.fc1.", ".intermediate.dense."),
        (".mlp.fc2.", ".output.dense."),
        (".layer_norm1.", ".layernorm_before."),
        (".layer_norm2.", ".layernorm_after."),
    ),
    unused=r"^vit\.pooler\.|\.mask_token$",
)
# the layers of both towers of CLIP in open_clip, and of its text towers
_OPEN_CLIP_LAYER = (
    (r"\.attn\.in_proj_", ".self_attn.qkv_proj."),
    (r"\.attn\.out_proj\.", ".self_attn.out_proj."),
    (r"\.ln_1\.", ".layer_norm1."),
    (r"\.ln_2\.", ".layer_norm2."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
)
_OPEN_CLIP_TEXT = (
    (r"^(text\.)?transformer\.resblocks\.", "text.layers."),
    (r"^(text\.)?token_embedding\.", "text.token_embedding."),
    (r"^(text\.)?positional_embedding$", "text.position_embedding.weight"),
    (r"^(text\.)?ln_final\.", "text.final_layer_norm."),
)
_OPEN_CLIP_TEXT_PREFIXES = (
    ("text.layers.", "text.transformer.resblocks."),
    ("text.position_embedding.weight", "text.positional_embedding"),
    ("text.final_layer_norm.", "text.ln_final."),
    ("text.", "text."),
    ("logit_", "logit_"),
)
OPEN_CLIP = TensorNames(
    renames=(
        *_OPEN_CLIP_TEXT,
        *_OPEN_CLIP_LAYER,
        (r"^(text\.)?text_projection$", "text_projection.weight"),
        (r"^visual\.proj$", "image_projection.weight"),
        (r"^visual\.class_embedding$", "vision.embeddings.class_embedding"),
        (r"^visual\.positional_embedding$", "vision.embeddings.position_embedding.weight"),
        (r"^visual\.conv1\.", "vision.embeddings.patch_embedding."),
        (r"^visual\.ln_pre\.", "vision.pre_layernorm."),
        (r"^visual\.ln_post\.", "vision.post_layernorm."),
        (r"^visual\.transformer\.resblocks\.", "vision.layers."),
    ),
    prefixes=(
        ("text_projection.weight", "text_projection"),
        ("image_projection.weight", "visual.proj"),
        ("vision.embeddings.class_embedding", "visual.class_embedding"),
        ("vision.embeddings.position_embedding.weight", "visual.positional_embedding"),
        ("vision.embeddings.patch_embedding.", "visual.conv1."),
        ("vision.pre_layernorm.", "visual.ln_pre."),
        ("vision.post_layernorm.", "visual.ln_post."),
        ("vision.layers.", "visual.transformer.resblocks."),
        *_OPEN_CLIP_TEXT_PREFIXES,
    ),
    parts=(
        (".self_attn.qkv_proj.", ".attn.in_proj_"),
        (".self_attn.out_proj.", ".attn.out_proj."),
        (".layer_norm1.", ".ln_1."),
        (".layer_norm2.", ".ln_2."),
        (".mlp.fc1.", ".mlp.c_fc."),
        (".mlp.fc2.", ".mlp.c_proj."),
    ),
    unused=r"^(text\.)?attn_mask$",
    fused=(),
    transposed=("text_projection.weight", "image_projection.weight"),
)
OPEN_CLIP_SIGLIP = TensorNames(
    renames=(
        *_OPEN_CLIP_TEXT,
        *_OPEN_CLIP_LAYER,
        (r"^text\.text_projection\.", "text_projection."),
        (r"^visual\.trunk\.pos_embed$", "vision.embeddings.position_embedding.weight"),
        (r"^visual\.trunk\.patch_embed\.proj\.", "vision.embeddings.patch_embedding."),
        (r"^visual\.trunk\.norm\.", "vision.post_layernorm."),
        (r"^visual\.trunk\.attn_pool\.latent$", "image_pooling.probe"),
        (r"^visual\.trunk\.attn_pool\.(q|kv)\.", r"image_pooling.attention.\1_"),
        (r"^visual\.trunk\.attn_pool\.proj\.", "image_pooling.attention.out_proj."),
        (r"^visual\.trunk\.attn_pool\.norm\.", "image_pooling.layernorm."),
        (r"^visual\.trunk\.attn_pool\.mlp\.", "image_pooling.mlp."),
        (r"^visual\.trunk\.blocks\.", "vision.layers."),
        (r"\.norm1\.", ".layer_norm1."),
        (r"\.norm2\.", ".layer_norm2."),
        (r"\.attn\.qkv\.", ".self_attn.qkv_proj."),
        (r"\.attn\.proj\.", ".self_attn.out_proj."),
    ),
    prefixes=(
        ("text_projection.", "text.text_projection."),
        ("image_pooling.probe", "visual.trunk.attn_pool.latent"),
        ("image_pooling.attention.q_", "visual.trunk.attn_pool.q."),
        ("image_pooling.attention.kv_", "visual.trunk.attn_pool.kv."),
        ("image_pooling.attention.out_proj.", "visual.trunk.attn_pool.proj."),
        ("image_pooling.layernorm.", "visual.trunk.attn_pool.norm."),
        ("image_pooling.", "visual.trunk.attn_pool."),
        ("vision.embeddings.position_embedding.weight", "visual.trunk.pos_embed"),
        ("vision.embeddings.patch_embedding.", "visual.trunk.patch_embed.proj."),
        ("vision.post_layernorm.", "visual.trunk.norm."),
        ("vision.layers.", "visual.trunk.blocks."),
        *_OPEN_CLIP_TEXT_PREFIXES,
    ),
    parts=(
        (".self_attn.qkv_proj.", ".attn.qkv."),
        (".self_attn.out_proj.", ".attn.proj."),
        (".layer_norm1.", ".norm1."),
        (".layer_norm2.", ".norm2."),
    ),
    fused=(
        (
            "image_pooling.attention.in_proj_",
            (("image_pooling.attention.q_", 1), ("image_pooling.attention.kv_", 2)),
        ),
    ),
)
