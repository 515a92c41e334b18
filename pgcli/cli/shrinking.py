"""What a person is told of batches that shrank because memory ran out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgcli.engine.engine import Engine


class Shrinking:
    """Says so once, while the run goes on; the summary has the last word."""

    def __init__(self, engine: Engine, say: Callable[[str], None]):
        self._engine = engine
        self._say = say
        self._is_said = False

    def remark(self) -> None:
        """Say it, where it is so and was not said."""
        told = self._engine.headroom.told()
        if told and not self._is_said:
            self._is_said = True
            self._say(f"memory ran out: {told}; no row is lost")
