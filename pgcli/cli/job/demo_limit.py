"""The built-in model answers at most 100 images unless it is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgcli.checkpoints.find import DEMO
from pgcli.errors import UsageError
from pgcli.records import Item

#: The most images that `demo` answers without `--model demo`: it exists to be tried out.
DEMO_IMAGES = 100
REAL_MODEL = "a real one: --model google/paligemma-3b-mix-224"


@dataclass
class DemoLimit:
    """The first DEMO_IMAGES items; `exceeded` says after iteration whether there were more."""

    items: Iterable[Item]
    exceeded: bool = False

    def __iter__(self) -> Iterator[Item]:
        for count, item in enumerate(self.items, start=1):
            if count > DEMO_IMAGES:
                self.exceeded = True
                return
            yield item


def demo_limit_error(images: str) -> UsageError:
    """The error for more images than the built-in model answers without being named."""
    return UsageError(
        f"{images} for {DEMO}, the built-in model, which knows only drawings of shapes",
        hint=f"name {REAL_MODEL}; or write --model {DEMO} if you mean it",
    )
