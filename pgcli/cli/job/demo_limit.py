"""The built-in models answer at most 100 images unless they are named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgcli.cli.job.run_task import RunTask
from pgcli.errors import UsageError
from pgcli.records import Item

#: The most images that `demo` answers without `--model demo`: it exists to be tried out.
DEMO_IMAGES = 100


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


def demo_limit_error(images: str, task: RunTask) -> UsageError:
    """The error for more images than the built-in model answers without being named."""
    name = task.default_model
    return UsageError(
        f"{images} for {name}, the built-in model, which knows only {task.knows}",
        hint=f"name a real one: {task.real_model}; or write --model {name} if you mean it",
    )
