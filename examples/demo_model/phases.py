"""The phases of the built-in model's training: what each is trained on, and how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True)
class Phase:
    """What a phase is trained on, and how long.

    It begins with the `weights` of another one. Up to `max_examples` are packed into rows of
    `text_slots` tokens.
    """

    steps: int
    rate: float
    weights: str | None = None
    max_examples: int = 0
    text_slots: int = 128
    batch_size: int = 16  # drawings of a step and process
    eval_every: int = 100
    scene_rates: tuple[int, int, int] = (50, 50, 0)  # without a word, with one, with many
    scene_choices: int = 1  # of these, the drawing with the most objects and letters
    #: With one example in a row: how often one is of each kind, relative to kinds without a rate.
    example_rates: Mapping[str, float] = field(default_factory=dict)
    patch_weight: float = 0.3  # of the loss of patch targets, beside the answers' of 1
    first_drawing: int = 0  # so that no two phases have the same
    dtype: torch.dtype = torch.float32  # of the saved weights


CROWDED = Phase(
    3400,
    1.2e-3,
    "single",
    max_examples=1,
    batch_size=32,
    eval_every=340,
    scene_rates=(60, 40, 0),
    scene_choices=2,
    example_rates={"ocr": 30, "segment": 6, "caption": 14, "count": 3, "where": 2, "detect": 2},
    patch_weight=0.0,
    first_drawing=400_000_000,
    dtype=torch.bfloat16,
)
ASKED = replace(
    CROWDED,
    steps=2400,
    rate=8e-4,
    weights="crowded",
    eval_every=300,
    scene_rates=(65, 35, 0),
    example_rates={
        "ocr": 60,
        "caption": 16,
        "where": 12,
        "exists": 8,
        "count": 7,
        "segment": 5,
        "side": 3,
        "detect": 2,
    },
    first_drawing=500_000_000,
)
#: In their order, after the mask autoencoder's. Of several names, the mean of their weights is it.
PHASES: Mapping[str, Phase | tuple[str, ...]] = {
    "vision": Phase(6000, 3e-3, scene_rates=(20, 15, 65), patch_weight=1.0),
    "packed": Phase(3000, 2e-3, "vision", 16, scene_rates=(40, 60, 0), first_drawing=100_000_000),
    "longer": Phase(1500, 1e-3, "packed", 16, scene_rates=(40, 60, 0), first_drawing=200_000_000),
    "single": Phase(
        1400,
        7e-4,
        "longer",
        1,
        scene_rates=(55, 45, 0),
        example_rates={"ocr": 10, "segment": 6, "caption": 6, "count": 2, "detect": 1.5},
        first_drawing=300_000_000,
        dtype=torch.bfloat16,
    ),
    "crowded": CROWDED,
    "asked": ASKED,
    "two": ("crowded", "asked"),
    "four": replace(
        ASKED,
        steps=3000,
        rate=1.2e-3,
        weights="two",
        scene_rates=(70, 30, 0),
        scene_choices=4,
        example_rates={**ASKED.example_rates, "where": 16, "count": 8, "colour": 2},
        first_drawing=600_000_000,
    ),
    "demo": ("two", "four"),
}
