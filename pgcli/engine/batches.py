"""Who goes into the next batch: rows whose prompts are alike in length, the oldest among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgcli.records import DecodedImage

if TYPE_CHECKING:
    from pgcli.engine.choices import Candidate


@dataclass(frozen=True, slots=True)
class Request:
    """A picture and one of its prompts, waiting for its turn.

    `place` is where its row goes; `picture_key` is the same for all prompts of a picture, and
    `shares` says how many there are, so that what was computed of it can be let go. With
    `candidates` the answer is picked among them, else it is generated.
    """

    place: int
    picture: DecodedImage
    prompt: str
    ids: tuple[int, ...]
    picture_key: int
    shares: int
    candidates: Sequence[Candidate] = ()


class Waiting:
    """Requests that wait to be read in groups of up to `size`; at most `window` wait at once.

    A group forms around the oldest. While `window` allows it is filled with requests of the same
    length, since equal lengths need no padding and no mask; then, or when nothing more comes, the
    nearest lengths complete it. Who goes where follows from the order of arrival alone, and nobody
    is passed over by `window` groups.
    """

    def __init__(self, *, size: int, window: int):
        self.size = size
        self.window = window
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def ready(self) -> bool:
        """Whether a group is due before anything more comes."""
        if len(self) >= self.window:
            return True
        return len(self) >= self.size and sum(map(self._is_alike, self._requests)) >= self.size

    def take(self) -> list[Request]:
        """The oldest request and those nearest to it in length, which wait no more."""
        oldest = len(self._requests[0].ids)
        by_distance = sorted(self._requests, key=lambda request: abs(len(request.ids) - oldest))
        batch = by_distance[: self.size]
        taken = {request.place for request in batch}
        self._requests = [one for one in self._requests if one.place not in taken]
        return batch

    def _is_alike(self, request: Request) -> bool:
        return len(request.ids) == len(self._requests[0].ids)
