"""Who goes into the next batch: rows whose prompts are alike in length, the oldest among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgcli.records import Picture


@dataclass(frozen=True, slots=True)
class Request:
    """A picture and one of its prompts, waiting for its turn.

    `place` is where its row goes; `picture_key` is the same for all prompts of a picture, and
    `shares` says how many there are, so that what was computed of it can be let go.
    """

    place: int
    picture: Picture
    prompt: str
    ids: tuple[int, ...]
    picture_key: int
    shares: int


def batches(requests: Iterable[Request], *, size: int, window: int) -> Iterator[list[Request]]:
    """Groups of up to `size` requests, chosen among the next `window` of them.

    A group forms around the oldest request that waits. While there are requests of its length to
    come it is filled with those, since equal lengths need no padding and no mask; once `window`
    requests wait, or the stream ends, the nearest lengths complete it. Who goes where follows
    from the input's order alone. No request waits longer than `window` others.
    """
    waiting: list[Request] = []
    for request in requests:
        waiting.append(request)
        alike = len(waiting[0].ids)
        full = len(waiting) >= size and sum(len(r.ids) == alike for r in waiting) >= size
        if full or len(waiting) >= window:
            yield _take(waiting, size)
    while waiting:
        yield _take(waiting, size)


def _take(waiting: list[Request], size: int) -> list[Request]:
    """Remove and return the oldest request and the `size` - 1 nearest to it in length."""
    oldest = len(waiting[0].ids)
    nearest = sorted(waiting, key=lambda request: abs(len(request.ids) - oldest))[:size]
    taken = {request.place for request in nearest}
    waiting[:] = [request for request in waiting if request.place not in taken]
    return nearest
