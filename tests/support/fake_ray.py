"""A fake `ray` module with actors in threads of this process.

Calls reach an actor in another order than they were made, which Ray allows too.
"""

import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

NODE_ACTORS = 2  # per node


class RayError(Exception):
    pass


class RayTaskError(RayError):
    cause: object = None


class Death(BaseException):
    """Ends an actor's process."""


class Call:
    """A call of an actor's `messages` method."""

    def __init__(self, handle: "Handle"):
        self._handle = handle

    @property
    def has_ended(self) -> bool:
        actor = self._handle.actor
        return self._handle.is_dead or (actor is not None and not actor._messages.empty())

    def result(self) -> Any:
        if self._handle.is_dead:
            raise RayError("The actor died unexpectedly\nand here is more")
        assert self._handle.actor is not None
        return self._handle.actor.messages()


class Handle:
    """A handle of an actor; `actor` is None until there is room for it."""

    def __init__(self, kind: type, arguments: Sequence[object]):
        self.actor: Any = None
        self.is_dead = False
        self.node = ""
        self._kind, self._arguments = kind, arguments
        self._held: list[Callable[[], object]] = []
        self.messages = SimpleNamespace(remote=lambda: Call(self))
        self.give = SimpleNamespace(remote=self._give)
        self.stop = SimpleNamespace(remote=lambda: self.actor.stop())

    def start(self, node: str) -> None:
        handle, self.node, kind = self, node, self._kind

        class Mortal(kind):  # type: ignore[misc]
            def _run(self) -> None:
                try:
                    super()._run()
                except Death:
                    handle.is_dead = True

        self.actor = Mortal(*self._arguments)

    def _give(self, *arguments: Any) -> None:
        """Of two calls, the second reaches the actor first."""
        self._held.append(lambda: self.actor.give(*arguments))
        if len(self._held) == 2:
            self.deliver()
        else:
            threading.Timer(0.02, self.deliver).start()

    def deliver(self) -> None:
        held, self._held = self._held, []
        for call in reversed(held):
            call()


class FakeRay:
    """The fake module. `nodes_alive` has the cluster's nodes, the driver's first. With `is_silent`
    it neither lists nodes nor starts actors.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, nodes: int = 1):
        self.nodes_alive = {f"node {number}": True for number in range(nodes)}
        self.is_silent = False
        self.handles: list[Handle] = []
        self.has_left = False
        self.on_wait: Callable[[], object] = lambda: None

    def init(self, **options: object) -> None:
        pass

    def shutdown(self) -> None:
        self.has_left = True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "node 0")

    def nodes(self) -> list[dict[str, Any]]:
        while self.is_silent and not self.has_left:
            time.sleep(0.01)
        return [
            {"NodeID": name, "Alive": alive, "Resources": {"CPU": NODE_ACTORS} if alive else {}}
            for name, alive in self.nodes_alive.items()
        ]

    def remote(self, kind: type) -> Any:
        def request(*arguments: object) -> Handle:
            self.handles.append(Handle(kind, arguments))
            return self.handles[-1]

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=request))

    def wait(
        self, calls: Sequence[Call], num_returns: int = 1, timeout: float = 0
    ) -> tuple[list[Call], list[Call]]:
        end = time.monotonic() + timeout
        self.on_wait()
        self._start_actors()
        while True:
            ended = [call for call in calls if call.has_ended][:num_returns]
            if ended or time.monotonic() >= end:
                return ended, [call for call in calls if call not in ended]
            time.sleep(0.005)

    def get(self, call: Call) -> Any:
        return call.result()

    def kill(self, handle: Handle) -> None:
        handle.is_dead = True
        if handle.actor is not None:
            handle.actor.stop()  # its thread ends

    def end_node(self, name: str) -> None:
        self.nodes_alive[name] = False
        for handle in self.handles:
            if handle.node == name:
                self.kill(handle)

    def _start_actors(self) -> None:
        """Start the earliest requested actors, as far as there is room."""
        alive = [name for name, alive in self.nodes_alive.items() if alive]
        for name in [] if self.is_silent else alive:
            running = [h for h in self.handles if h.node == name and not h.is_dead]
            waiting = [h for h in self.handles if not h.node and not h.is_dead]
            for handle in waiting[: NODE_ACTORS - len(running)]:
                handle.start(name)
