"""The message that batches became smaller because memory ran out."""

from __future__ import annotations

from collections.abc import Callable

from pgcli.cli.job.run_task import RunEngine
from pgcli.pipeline import NullCallback, Tally
from pgcli.records import Answer
from pgcli.state.run_state import RunState


class OomNotice(NullCallback):
    """Prints the message once during the run; the summary repeats the final limits.

    The limits are kept in the state of the run: a resumed run on the same device begins with them.
    """

    def __init__(
        self, engine: RunEngine, say: Callable[[str], None], state: RunState | None = None
    ):
        self._engine = engine
        self._say = say
        self._state = state
        self._is_printed = False
        if state is not None:
            engine.batch_limits.load_state_dict(state.progress.memory.get(engine.device, {}))

    def on_row(self, answer: Answer, tally: Tally) -> None:
        self.check()

    def check(self) -> None:
        """Print the message if memory ran out, and note the limits."""
        limits = self._engine.batch_limits.summary()
        if not limits:
            return
        if self._state is not None:
            self._state.progress.memory[self._engine.device] = (
                self._engine.batch_limits.state_dict()
            )
        if not self._is_printed:
            self._is_printed = True
            self._say(f"memory ran out: {limits}; no row is lost")
