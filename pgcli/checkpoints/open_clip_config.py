"""Reads `open_clip_config.json`: the sizes of CLIP and SigLIP in open_clip's layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from types import MappingProxyType
from typing import Any, Literal

from pgcli.checkpoints.config_reader import ConfigReader
from pgcli.checkpoints.files import read_json
from pgcli.checkpoints.names import Pairs, TensorNames
from pgcli.checkpoints.preprocessing import CLIP_MEAN, CLIP_STD, Preprocessing
from pgcli.checkpoints.weight_files import OPEN_CLIP_CONFIG
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import Activation, TextConfig, TwoTowersConfig, VisionConfig

SUPPORTED = (
    "supported of open_clip are CLIP with a vision transformer, and SigLIP and SigLIP 2 with a "
    "vision tower of timm"
)
TIMM_NAME = re.compile(r"vit_([a-z0-9]+)_patch(\d{1,3})_siglip_(\d{1,4})")
INTERPOLATIONS = MappingProxyType({"bicubic": 3, "bilinear": 2, "random": 3})
#: Settings of training, and the names of what the checkpoint itself has.
HARMLESS_KEYS = frozenset(
    """
    custom_text eos_id fill_color hf_tokenizer_name init_logit_scale nonscalar_logit_scale pad_id
    patch_dropout timm_drop timm_drop_path timm_model_pretrained timm_proj_bias
    """.split()
)
CleanName = Literal["canonicalize", "lower", "whitespace"]
CLEAN_NAMES: Mapping[str, CleanName] = MappingProxyType(
    {"canonicalize": "canonicalize", "lower": "lower", "whitespace": "whitespace"}
)


@dataclass(frozen=True, slots=True)
class TimmSizes:
    """The sizes of a vision tower that open_clip names only."""

    width: int
    depth: int
    num_heads: int
    mlp_ratio: float = 4.0
    activation: Activation = "gelu"


TIMM: Mapping[str, TimmSizes] = MappingProxyType(
    {
        "base": TimmSizes(768, 12, 12),
        "large": TimmSizes(1024, 24, 16),
        "so400m": TimmSizes(1152, 27, 16, 3.7362),
        "giantopt": TimmSizes(1536, 40, 16, activation="gelu_tanh"),
    }
)


@dataclass(frozen=True, slots=True)
class OpenClipConfig:
    """The sizes of both towers, how images are prepared, and how texts are cleaned."""

    towers: TwoTowersConfig
    preprocessing: Preprocessing
    clean: CleanName

    @property
    def names(self) -> TensorNames:
        return OPEN_CLIP_SIGLIP if self.towers.family == "siglip" else OPEN_CLIP


def read_open_clip(folder: Path) -> OpenClipConfig:
    """The configuration of a folder in open_clip's layout.

    Raises InvalidCheckpoint with the key's name for a setting that is not supported.
    """
    values = read_json(folder / OPEN_CLIP_CONFIG)
    try:
        return parse_open_clip(values)
    except ValueError as error:
        raise InvalidCheckpoint(f"{folder / OPEN_CLIP_CONFIG}: {error}", hint=SUPPORTED) from error


def parse_open_clip(values: Mapping[str, Any]) -> OpenClipConfig:
    """The configuration from the values of the file; open_clip's defaults if absent."""
    keys = ConfigReader("model_cfg", values.get("model_cfg"))
    vision_keys = ConfigReader("vision_cfg", keys.pop("vision_cfg"))
    text_keys = ConfigReader("text_cfg", keys.pop("text_cfg"))
    is_quick = keys.boolean("quick_gelu", False)
    embedding_dim = keys.integer("embed_dim")
    is_siglip = "timm_model_name" in vision_keys.present
    if is_siglip:
        keys.pop("init_logit_bias")
    _finish(keys)
    vision = _timm(vision_keys) if is_siglip else _vision(vision_keys, is_quick)
    clean = _clean(text_keys)
    text = _text(text_keys, is_siglip=is_siglip, is_quick=is_quick)
    if is_siglip and embedding_dim != vision.width:
        raise ValueError(
            f"texts have embeddings of {embedding_dim} values, images of {vision.width}"
        )
    return OpenClipConfig(
        TwoTowersConfig("siglip" if is_siglip else "clip", vision, text, embedding_dim),
        _preprocessing(ConfigReader("preprocess_cfg", values.get("preprocess_cfg", {})), vision),
        clean,
    )


def _vision(keys: ConfigReader, is_quick: bool) -> VisionConfig:
    """CLIP's vision transformer; a list of `layers` is a ResNet."""
    width = keys.integer("width", 768)
    head_width = keys.integer("head_width", 64)
    keys.expect("pool_type", "tok")
    config = VisionConfig(
        **_sizes(keys, width, max(1, width // head_width), is_quick),
        patch_size=keys.integer("patch_size", 16, high=1024),
        resolution=_resolution(keys),
        class_token=True,
        patch_bias=False,
        pre_norm=True,
    )
    _finish(keys)
    if config.patch_size > config.resolution:
        raise ValueError(
            f"vision_cfg.patch_size is {config.patch_size}, the image size {config.resolution}"
        )
    return config


def _timm(keys: ConfigReader) -> VisionConfig:
    """SigLIP's vision tower, whose sizes are those of its name in timm."""
    name = keys.pop("timm_model_name")
    match = TIMM_NAME.fullmatch(name) if isinstance(name, str) else None
    sizes = TIMM.get(match[1]) if match else None
    if match is None or sizes is None:
        raise ValueError(f"vision_cfg.timm_model_name is {brief(name)}")
    keys.expect("timm_pool", "map")
    keys.expect("timm_proj", "none", "")
    config = VisionConfig(
        width=sizes.width,
        depth=sizes.depth,
        mlp_dim=int(sizes.width * sizes.mlp_ratio),
        num_heads=sizes.num_heads,
        patch_size=int(match[2]),
        # open_clip leaves timm's size as it is, whatever `image_size` is
        resolution=int(match[3]),
        activation=sizes.activation,
    )
    if _resolution(keys) != config.resolution:
        raise ValueError(f"vision_cfg.image_size is not that of {name}")
    _finish(keys)
    return config


def _text(keys: ConfigReader, *, is_siglip: bool, is_quick: bool) -> TextConfig:
    keys.expect("no_causal_mask", is_siglip)
    keys.expect("proj_bias", is_siglip)
    keys.expect("pool_type", "last" if is_siglip else "argmax")
    width = keys.integer("width", 512)
    config = TextConfig(
        **_sizes(keys, width, keys.integer("heads", 8, high=4096), is_quick),
        vocab_size=keys.integer("vocab_size", 49_408, high=1 << 24),
        max_positions=keys.integer("context_length", 77, high=1 << 16),
        causal=not is_siglip,
    )
    _finish(keys)
    return config


def _sizes(keys: ConfigReader, width: int, heads: int, is_quick: bool) -> dict[str, Any]:
    """The fields that both towers have."""
    norm = ConfigReader(f"{keys.level}.norm_kwargs", keys.pop("norm_kwargs", {}))
    eps = norm.positive("eps", 1e-5)
    _finish(norm)
    gelu = ConfigReader(f"{keys.level}.act_kwargs", keys.pop("act_kwargs", {}))
    is_tanh = gelu.values.get("approximate") == "tanh"
    gelu.expect("approximate", "tanh", "none")
    _finish(gelu)
    if width % heads:
        raise ValueError(f"{keys.level}: {heads} heads do not divide the width {width}")
    return {
        "width": width,
        "depth": keys.integer("layers", 12, high=1000),
        "mlp_dim": int(width * keys.positive("mlp_ratio", 4.0)),
        "num_heads": heads,
        "norm_eps": eps,
        "activation": "quick_gelu" if is_quick else "gelu_tanh" if is_tanh else "gelu",
    }


def _resolution(keys: ConfigReader) -> int:
    size = keys.values.get("image_size")
    if isinstance(size, list) and len(size) == 2 and size[0] == size[1]:
        keys.values["image_size"] = size[0]
    return keys.integer("image_size", 224, high=8192)


def _finish(keys: ConfigReader) -> None:
    """Refuse settings that are on and not supported; off is open_clip's default."""
    for key, value in keys.values.items():
        if key not in HARMLESS_KEYS and value is not None and value is not False:
            raise ValueError(f"{keys.name(key)} = {brief(value)} is not supported")


def _clean(keys: ConfigReader) -> CleanName:
    """How texts are cleaned; only tokenizers of SigLIP are named by the file."""
    is_named = keys.pop("hf_tokenizer_name") is not None
    settings = ConfigReader("text_cfg.tokenizer_kwargs", keys.pop("tokenizer_kwargs", {}))
    clean = settings.pop("clean", "whitespace" if is_named else "lower")
    _finish(settings)
    if str(clean) not in CLEAN_NAMES:
        raise settings.refuse("clean", clean, f"; supported: {', '.join(CLEAN_NAMES)}")
    return CLEAN_NAMES[clean]


def _preprocessing(keys: ConfigReader, vision: VisionConfig) -> Preprocessing:
    keys.expect("mode", "RGB")
    keys.expect("size", vision.resolution, [vision.resolution] * 2)
    interpolation = keys.pop("interpolation", "bicubic")
    if str(interpolation) not in INTERPOLATIONS:
        raise keys.refuse(
            "interpolation", interpolation, f"; supported: {', '.join(INTERPOLATIONS)}"
        )
    mode = keys.pop("resize_mode", "shortest")
    if mode not in ("shortest", "squash"):
        raise keys.refuse("resize_mode", mode, "; supported: shortest, squash")
    is_cropped = mode == "shortest"
    preprocessing = Preprocessing(
        INTERPOLATIONS[interpolation],
        _color(keys, "mean", CLIP_MEAN),
        _color(keys, "std", CLIP_STD),
        resize_to=vision.resolution if is_cropped else None,
        keeps_aspect=is_cropped,
        rounds_margin=is_cropped,
    )
    _finish(keys)
    return preprocessing


def _color(keys: ConfigReader, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """Three numbers, red, green and blue, or one for all of them."""
    value = keys.pop(key, [*default])
    values = value if isinstance(value, list) else [value] * 3
    is_number = all(type(number) in (int, float) and abs(number) < 1e9 for number in values)
    if len(values) != 3 or not is_number or (key == "std" and min(values) <= 0):
        raise ValueError(f"preprocess_cfg.{key} is {brief(value)}")
    return tuple(map(float, values))


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
