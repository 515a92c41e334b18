"""Translates tensor names between checkpoints and the model."""

from __future__ import annotations

import re

# From the names of all checkpoint versions to the model's; each pattern is applied in order.
RENAMES = (
    (r"^model\.(?=vision_tower\.|multi_modal_projector\.|language_model\.)", ""),
    (r"^vision_tower\.(vision_model\.)?", "vision."),
    (r"^vision\.encoder\.", "vision."),
    (r"^multi_modal_projector\.linear\.", "projector."),
    (r"^(language_model\.)?lm_head\.", "decoder.lm_head."),
    (r"^language_model\.(model\.)?", "decoder."),
)
# from the model's names to the Hub's
HUB_PREFIXES = (
    ("vision.layers.", "vision_tower.vision_model.encoder.layers."),
    ("vision.", "vision_tower.vision_model."),
    ("projector.", "multi_modal_projector.linear."),
    ("decoder.lm_head.", "language_model.lm_head."),
    ("decoder.", "language_model.model."),
)


def canonical(name: str) -> str:
    """The model's name for a tensor of any checkpoint version."""
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name, count=1)
    return name


def hub_name(name: str) -> str:
    """The Hub's name for a tensor of the model."""
    for prefix, hub_prefix in HUB_PREFIXES:
        if name.startswith(prefix):
            return hub_prefix + name.removeprefix(prefix)
    raise ValueError(f"{name} is not a tensor of the model")
