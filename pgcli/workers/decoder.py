"""The interface of decoders that can run in a worker process, and their names there."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, Self

from pgcli.records import DecodedImage, Item


class Decoder(Protocol):
    """Decodes items. A worker process rebuilds it from its class name and its settings."""

    def __call__(self, item: Item) -> DecodedImage:
        """The decoded item, or its fault. Raises nothing for a bad image."""

    def settings(self) -> dict[str, Any]:
        """What `from_settings` needs, as JSON."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The decoder that `settings` describe."""

    def produces(self, shape: tuple[int, ...]) -> bool:
        """Whether pixels of this decoder may have the shape."""


def describe_decoder(decoder: Decoder) -> dict[str, Any]:
    """The decoder's class and settings as JSON."""
    kind = type(decoder)
    if kind.__module__ == "__main__":
        raise TypeError(f"{kind.__qualname__} is not in a module that a worker process can import")
    return {
        "module": kind.__module__,
        "class": kind.__qualname__,
        "settings": decoder.settings(),
    }


def load_decoder(description: Mapping[str, Any]) -> Decoder:
    """The decoder that `describe_decoder` described, imported by its name."""
    kind = getattr(import_module(description["module"]), description["class"])
    decoder: Decoder = kind.from_settings(description["settings"])
    return decoder
