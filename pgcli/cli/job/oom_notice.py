"""What a person is told of batches that shrank because memory ran out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pgcli.state.run_state import RunState

if TYPE_CHECKING:
    from pgcli.engine.engine import Engine


class OomNotice:
    """Says so once, while the run goes on; the summary has the last word.

    A run that is gone on with on the same device begins with batches that found memory there.
    """

    def __init__(self, engine: Engine, say: Callable[[str], None], state: RunState | None = None):
        self._engine = engine
        self._say = say
        self._state = state
        self._is_said = False
        if state is not None:
            engine.batch_limits.load_state_dict(state.progress.memory.get(engine.device, {}))

    def remark(self) -> None:
        """Say it, where it is so and was not said, and have the run's state know it."""
        told = self._engine.batch_limits.summary()
        if not told:
            return
        if self._state is not None:
            self._state.progress.memory[self._engine.device] = (
                self._engine.batch_limits.state_dict()
            )
        if not self._is_said:
            self._is_said = True
            self._say(f"memory ran out: {told}; no row is lost")
