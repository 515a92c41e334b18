"""The program's side of an engine process."""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.context import BaseContext
from typing import Any

from pgcli.cluster.channel import receive, send
from pgcli.cluster.engine_process import Load, serve
from pgcli.cluster.engine_slot import EngineSlot
from pgcli.cluster.messages import (
    EngineFailed,
    EngineInfo,
    ImageChunk,
    LearnedLimits,
    StopRequest,
)
from pgcli.cluster.start_method import SPAWN, start_process

#: The chunk that is answered, and the next one, so that the engine does not wait for it.
CHUNKS_PER_ENGINE = 2


class EngineDied(Exception):
    """The process has ended; the argument says how."""


class EngineHandle:
    """An engine process. `chunks` are those that it was given and has not completed.

    `is_loaded` is set by its first message. A process that cannot be started has died.
    """

    def __init__(self, load: Load, slot: EngineSlot, context: BaseContext = SPAWN):
        self.slot = slot
        self.chunks: deque[ImageChunk] = deque()
        self.is_loaded = False
        self.connection, theirs = context.Pipe()
        make: Any = context.Process  # type: ignore[attr-defined]
        self._process = make(target=serve, args=(theirs, load, slot), daemon=True)
        atexit.register(self.close)  # multiprocessing would send SIGTERM and wait
        self._problem = "it ended"  # for a process without an exit code
        try:
            start_process(self._process, context)
        except (EOFError, OSError) as problem:  # EOFError: of the process that it is forked from
            self._problem = f"it did not start: {problem}"
        finally:
            theirs.close()

    @property
    def has_room(self) -> bool:
        """Whether it can be given another chunk; until it is loaded, it would not read it."""
        return self.is_loaded and len(self.chunks) < CHUNKS_PER_ENGINE

    def send(self, chunk: ImageChunk) -> None:
        """Give the engine a chunk. That a process has ended is noticed when it is received from."""
        self.chunks.append(chunk)
        with suppress(OSError):
            send(self.connection, chunk)

    def learn(self, limits: Mapping[str, Any]) -> None:
        """Have the engine begin its next chunk with batch sizes that are known to fit."""
        with suppress(OSError):
            send(self.connection, LearnedLimits(dict(limits)))

    def stop(self) -> None:
        """Have the engine finish the rows in progress only."""
        with suppress(OSError):
            send(self.connection, StopRequest())

    def receive(self) -> Any:
        """The next message. Raises EngineDied, and what the engine raised."""
        try:
            message = receive(self.connection)
        except (EOFError, OSError) as problem:
            if self._is_started:
                self._process.join(timeout=5)
            code = self._process.exitcode
            raise EngineDied(self._problem if code is None else _how(code)) from problem
        if isinstance(message, EngineFailed):
            message.error.add_note(message.traceback)
            raise message.error
        self.is_loaded |= isinstance(message, EngineInfo)
        return message

    def close(self) -> None:
        """End the process."""
        if self._is_started:
            self._process.kill()
            self._process.join(timeout=5)
        self.connection.close()
        atexit.unregister(self.close)

    @property
    def _is_started(self) -> bool:
        return self._process.pid is not None


def _how(code: int) -> str:
    return f"signal {-code} ended it" if code < 0 else f"it ended with exit code {code}"
