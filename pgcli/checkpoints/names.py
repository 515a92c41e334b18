"""What tensors are called: every generation of checkpoints, and this code."""

from __future__ import annotations

import re

# Every generation of names leads to this code's own; the first match of each pattern is renamed.
RENAMES = (
    (r"^model\.(?=vision_tower\.|multi_modal_projector\.|language_model\.)", ""),
    (r"^vision_tower\.(vision_model\.)?", "vision."),
    (r"^vision\.encoder\.", "vision."),
    (r"^multi_modal_projector\.linear\.", "projector."),
    (r"^(language_model\.)?lm_head\.", "decoder.lm_head."),
    (r"^language_model\.(model\.)?", "decoder."),
)
# this code's trunk names -> the Hub's
HUB = (
    ("vision.layers.", "vision_tower.vision_model.encoder.layers."),
    ("vision.", "vision_tower.vision_model."),
    ("projector.", "multi_modal_projector.linear."),
    ("decoder.lm_head.", "language_model.lm_head."),
    ("decoder.", "language_model.model."),
)


def canonical(name: str) -> str:
    """This code's name for a tensor, from any generation of checkpoint names."""
    for pattern, ours in RENAMES:
        name = re.sub(pattern, ours, name, count=1)
    return name


def hub_name(name: str) -> str:
    """The Hub's name for one of this code's tensors."""
    for ours, theirs in HUB:
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise ValueError(f"{name} is no part of the model")
