"""Claims of the chunks of an output in an object store, which has no locks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

from pgcli.state.claims import CHUNKS, Claims
from pgcli.state.owners import Owner
from pgcli.state.state_folder import CLAIMING_PART
from pgcli.state.stored_owners import StoredOwners


class StoredClaims(Claims):
    """The chunks that this process computes, among all that share the output.

    Processes that claim at one moment may claim the same chunk; the first one that is complete
    stays, and the other is work lost. Processes that join begin at a random chunk and go on from
    there, so this is rare.
    """

    def __init__(
        self,
        owners: StoredOwners,
        part: str,
        numbers: Sequence[int],
        is_stored: Callable[[int], bool],
    ):
        is_one_of_several = CLAIMING_PART.fullmatch(part) and numbers
        start = SystemRandom().randrange(len(numbers)) if is_one_of_several else 0
        super().__init__(Path(), part, [*numbers[start:], *numbers[:start]], is_stored)
        self._owners = owners

    def remove_killed(self) -> None:
        self._owners.remove_killed()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        yield

    def _others(self) -> Iterator[Owner]:
        return iter(self._owners.others().values())

    def _free(self, taken: set[int]) -> Generator[int, None, None]:
        """The chunks that are neither taken nor complete.

        Those that are taken are looked for, a request for each, only when there is no other one.
        """
        for number in list(self._left):
            if number not in taken:
                if self._is_stored(number):
                    del self._left[number]
                else:
                    yield number
        for number in taken & self._left.keys() - self._own.keys():
            if self._is_stored(number):
                del self._left[number]

    def _write(self) -> None:
        self._owners.write({CHUNKS: list(self._own)})
