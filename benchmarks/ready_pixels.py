"""A decoder that returns the same pixels for every item, to time what surrounds decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from pgcli.records import DecodedImage, Item


class ReadyPixels:
    """Returns random pixels without decoding: of `side` x `side`."""

    def __init__(self, side: int):
        self.side = side
        self._pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)

    def __call__(self, item: Item) -> DecodedImage:
        return DecodedImage(item, self.side, self.side, self._pixels, 0.0)

    def settings(self) -> dict[str, Any]:
        return {"side": self.side}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        return cls(settings["side"])

    def produces(self, shape: tuple[int, ...]) -> bool:
        return shape == (self.side, self.side, 3)
