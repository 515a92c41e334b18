"""Streams pretended on the CPU, and a detector of memory that two of them use without a wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.tape import strided_tensors, written_tensors

HOST = "host"
#: For each stream, and the host: how many of its operations have ended before.
Clock = dict[str, int]


class Access(NamedTuple):
    """An operation on a buffer: where it ran, and its number there."""

    where: str
    number: int


class FakeEvent:
    """As `torch.cuda.Event`."""

    def __init__(self, streams: FakeStreams):
        self._streams = streams
        self.clock: Clock = {}

    def record(self, stream: FakeStream) -> None:
        self._streams.launch(stream.name)
        self.clock = dict(self._streams.clocks[stream.name])

    def synchronize(self) -> None:
        self._streams.wait(HOST, self.clock)


class FakeStream:
    """As `torch.cuda.Stream`."""

    def __init__(self, streams: FakeStreams, name: str):
        self._streams, self.name = streams, name

    def wait_event(self, event: FakeEvent) -> None:
        self._streams.wait(self.name, event.clock)


class FakeStreams(TorchDispatchMode):
    """Two streams and the host, whose operations are ordered by events and launches only.

    On entering it checks each operation on a buffer: what was written must have been waited for,
    and what is overwritten must have been read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clocks: dict[str, Clock] = {HOST: {}, "compute": {}, "copies": {}}
        self._compute, self.copies = FakeStream(self, "compute"), FakeStream(self, "copies")
        self._current = "compute"
        self._buffers: dict[int, tuple[str, list[Access], list[Access]]] = {}
        self.accesses: list[str] = []

    def compute(self) -> FakeStream:
        return self._compute

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    @contextmanager
    def entered(self, stream: FakeStream) -> Iterator[None]:
        before, self._current = self._current, stream.name
        yield
        self._current = before

    def add(self, buffer: Tensor, kind: str) -> None:
        """Check this buffer, of the host or a device, from now on."""
        self._buffers[buffer.untyped_storage().data_ptr()] = (kind, [], [])

    def launch(self, where: str) -> None:
        """An operation starts after those that the host had waited for when it launched it."""
        self.wait(where, self.clocks[HOST])
        self.clocks[where][where] = self.clocks[where].get(where, 0) + 1

    def wait(self, where: str, clock: Clock) -> None:
        own = self.clocks[where]
        own.update({name: max(number, own.get(name, 0)) for name, number in clock.items()})

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not function.is_view:
            places = places_of(strided_tensors((args, kwargs))) & self._buffers.keys()
            if places:
                self._check(places, places_of(written_tensors(function, args, kwargs)))
        return function(*args, **kwargs)

    def _check(self, places: set[int], targets: set[int]) -> None:
        is_of_host = {self._buffers[place][0] for place in places} == {HOST}
        where = HOST if is_of_host else self._current
        self.launch(where)
        clock = self.clocks[where]
        for place in places:
            kind, writes, reads = self._buffers[place]
            is_write = place in targets
            for earlier in [*writes, *(reads if is_write else ())]:
                if clock.get(earlier.where, 0) < earlier.number:
                    raise AssertionError(f"{where} uses a buffer that {earlier.where} still uses")
            (writes if is_write else reads).append(Access(where, clock[where]))
            self.accesses.append(f"{where} {'writes' if is_write else 'reads'} {kind}")


def places_of(tensors: Iterable[Tensor]) -> set[int]:
    """Where the tensors' memory begins."""
    return {one.untyped_storage().data_ptr() for one in tensors}
