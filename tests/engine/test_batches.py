"""Who goes into which batch: every request once, lengths alike together, nobody forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgcli.engine.batches import Request, Waiting
from pgcli.records import DecodedImage, Item

UNHURRIED = settings(deadline=None)  # a busy machine is no fault
PICTURE = DecodedImage(Item(0, "a", "a"), 8, 8, None, load_ms=0.0)

lengths_of_prompts = st.lists(st.integers(1, 9), max_size=60)
sizes = st.integers(1, 6)


@st.composite
def sizes_and_windows(draw: st.DrawFn) -> tuple[int, int]:
    """A batch size, and a window that holds at least one batch."""
    size = draw(sizes)
    return size, size * draw(st.integers(1, 5)) + draw(st.integers(0, 3))


def request(place: int, length: int) -> Request:
    return Request(place, PICTURE, "", (0,) * length, picture_key=place, shares=1)


class Arrivals:
    """Requests one after another, and how many have been taken so far."""

    def __init__(self, lengths: Sequence[int]):
        self.lengths = lengths
        self.taken = 0

    def __iter__(self) -> Iterator[Request]:
        for place, length in enumerate(self.lengths):
            self.taken += 1
            yield request(place, length)


def batches(arrivals: Iterable[Request], *, size: int, window: int) -> Iterator[list[Request]]:
    """The batches as the engine takes them."""
    waiting = Waiting(size=size, window=window)
    for arrival in arrivals:
        waiting.add(arrival)
        while waiting.ready():
            yield waiting.take()
    while waiting:
        yield waiting.take()


def groups(lengths: Sequence[int], size: int, window: int) -> list[list[int]]:
    """The places in each batch."""
    found = batches(Arrivals(lengths), size=size, window=window)
    return [[request.place for request in batch] for batch in found]


@UNHURRIED
@given(lengths_of_prompts, sizes_and_windows())
def test_every_request_is_in_exactly_one_batch(lengths: list[int], how: tuple[int, int]) -> None:
    found = groups(lengths, *how)
    assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))


@UNHURRIED
@given(lengths_of_prompts, sizes_and_windows())
def test_no_batch_is_empty_or_over_its_size_and_only_the_end_leaves_places_free(
    lengths: list[int], how: tuple[int, int]
) -> None:
    found = groups(lengths, *how)
    assert all(1 <= len(batch) <= how[0] for batch in found)
    assert all(len(batch) == how[0] for batch in found[:-1])


@UNHURRIED
@given(lengths_of_prompts, sizes_and_windows())
def test_each_batch_forms_around_the_oldest_that_waits(
    lengths: list[int], how: tuple[int, int]
) -> None:
    waiting = set(range(len(lengths)))
    for batch in groups(lengths, *how):
        assert batch[0] == min(waiting)
        waiting -= set(batch)


@UNHURRIED
@given(lengths_of_prompts, sizes_and_windows())
def test_no_more_requests_wait_than_the_window_holds(
    lengths: list[int], how: tuple[int, int]
) -> None:
    """No more pictures are held in memory, then, and no more are read than are needed."""
    arrivals, answered = Arrivals(lengths), 0
    for batch in batches(arrivals, size=how[0], window=how[1]):
        assert arrivals.taken - answered <= how[1]
        answered += len(batch)


@UNHURRIED
@given(lengths_of_prompts, sizes_and_windows())
def test_nobody_is_passed_over_by_more_batches_than_the_window_has_places(
    lengths: list[int], how: tuple[int, int]
) -> None:
    arrivals = Arrivals(lengths)
    taken_at = []
    found = []
    for batch in batches(arrivals, size=how[0], window=how[1]):
        found.append(batch)
        taken_at.append(arrivals.taken)
    for number, batch in enumerate(found):
        for waited in batch:
            earlier = [n for n in range(number) if taken_at[n] > waited.place]
            assert len(earlier) < how[1]


@UNHURRIED
@given(lengths_of_prompts, sizes_and_windows())
def test_who_goes_where_follows_from_the_lengths_alone(
    lengths: list[int], how: tuple[int, int]
) -> None:
    """Not from what else a request holds, and not from how far its stream has been read."""
    size, window = how
    plain = groups(lengths, size, window)
    assert groups(lengths, size, window) == plain
    other = [
        Request(1000 - 7 * n, PICTURE, f"prompt {n}", tuple(range(length)), n // 2, 2)
        for n, length in enumerate(lengths)
    ]
    found = batches(iter(other), size=size, window=window)
    places = [[(1000 - request.place) // 7 for request in batch] for batch in found]
    assert places == plain


@UNHURRIED
@given(st.integers(0, 40), st.integers(1, 9), sizes_and_windows())
def test_prompts_of_one_length_go_in_their_order_without_waiting(
    count: int, length: int, how: tuple[int, int]
) -> None:
    size, window = how
    arrivals = Arrivals([length] * count)
    place = 0
    for batch in batches(arrivals, size=size, window=window):
        assert [request.place for request in batch] == list(range(place, place + len(batch)))
        place += len(batch)
        assert arrivals.taken == place, "a full batch waits for nobody"


@UNHURRIED
@given(lengths_of_prompts, sizes_and_windows())
def test_lengths_are_mixed_only_when_the_window_is_full_or_the_stream_has_ended(
    lengths: list[int], how: tuple[int, int]
) -> None:
    arrivals, answered = Arrivals(lengths), 0
    for batch in batches(arrivals, size=how[0], window=how[1]):
        if len({len(request.ids) for request in batch}) > 1:
            full = arrivals.taken - answered >= how[1]
            assert full or arrivals.taken == len(lengths)
        answered += len(batch)


@pytest.mark.parametrize("kinds", [2, 3, 4])
def test_a_few_prompts_asked_of_every_picture_need_no_padding(kinds: int) -> None:
    """Four batches' window gathers each prompt's rows; only the last batches are mixed."""
    lengths = [5 + n % kinds for n in range(64 * kinds)]
    found = groups(lengths, size=8, window=32)
    assert [place for batch in found for place in batch] != list(range(len(lengths)))
    assert all(len({lengths[place] for place in batch}) == 1 for batch in found)


def test_the_nearest_lengths_fill_a_batch_that_its_own_length_cannot() -> None:
    lengths = [5, 20, 6, 19, 4, 21]
    assert groups(lengths, size=3, window=6) == [[0, 2, 4], [1, 3, 5]]


def test_no_requests_make_no_batch() -> None:
    assert groups([], size=4, window=16) == []
