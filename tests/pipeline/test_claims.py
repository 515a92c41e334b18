"""Chunks of an output are computed by one process each."""

from collections.abc import Collection

from pgcli.pipeline.state.claims import CLAIMS, Claim, Claims, claim_name
from pgcli.pipeline.state.processes import Process
from pgcli.stores import LocalStore


def nothing(numbers: Collection[int]) -> set[int]:
    return set()


def claims_of(store: LocalStore, chunks: int = 3) -> Claims:
    return Claims(store, Process(store, "shared"), range(chunks), nothing)


def test_each_chunk_is_claimed_by_one_process(tmp_path):
    store = LocalStore(tmp_path)
    first, second = claims_of(store), claims_of(store)
    claims = [taker.next(lambda: False) for taker in (first, second, first)]
    assert [claim and claim.number for claim in claims] == [0, 1, 2]
    names = sorted(entry.name for entry in store.list(CLAIMS))
    assert names == [claim_name(number) for number in range(3)]


def test_a_chunk_whose_process_has_died_is_free_unless_it_is_complete(tmp_path):
    store, complete = LocalStore(tmp_path), {0}
    dead = claims_of(store, 2)  # it is not registered: it does not run
    assert all(dead.next(lambda: False) for _ in range(2))
    claims = Claims(store, Process(store, "shared"), range(2), complete.intersection)
    claim = claims.next(lambda: False)
    assert claim is not None
    assert (claim.number, claim.deaths) == (1, 1)
    complete.add(1)
    assert claims.next(lambda: False) is None


def test_a_chunk_that_is_completed_between_two_looks_is_not_free(tmp_path):
    store, looks = LocalStore(tmp_path), [{0}, nothing([])]
    assert claims_of(store, 1).next(lambda: False)  # by a process that does not run

    def complete(numbers: Collection[int]) -> set[int]:
        return (looks.pop() if looks else {0}).intersection(numbers)

    claims = Claims(store, Process(store, "shared"), range(1), complete)
    assert claims.next(lambda: False) is None


def test_of_two_processes_one_takes_over_a_chunk(tmp_path):
    store, run, looks = LocalStore(tmp_path), {"run": "second"}, []
    assert claims_of(store, 1).next(lambda: False)  # by a process that does not run
    first = Process(store, "engine", run)

    def complete(numbers: Collection[int]) -> set[int]:
        looks.append(numbers)
        if len(looks) == 2:  # the other one has read the claim, and does not delete this one
            assert Claims(store, first, range(1), nothing).next(lambda: False) is not None
        return set()

    with first.registered():
        second = Claims(store, Process(store, "engine", run), range(1), complete)
        assert second.next(lambda: False) is None
    assert len(looks) == 2


def test_a_released_chunk_is_free(tmp_path):
    store = LocalStore(tmp_path)
    first, second = claims_of(store, 1), claims_of(store, 1)
    claim = first.next(lambda: False)
    assert claim is not None
    assert second.next(lambda: False, waits=False) is None
    first.release(claim.number)
    freed = second.next(lambda: False)
    assert freed is not None
    assert (freed.number, freed.deaths) == (0, 0)


def test_who_dies_while_the_model_is_loaded_did_not_die_of_the_chunk(tmp_path):
    store = LocalStore(tmp_path)
    dead = claims_of(store, 1)
    loading = dead.next(lambda: False, is_loading=True)
    assert loading is not None
    inherited = claims_of(store, 1).next(lambda: False)
    assert inherited == Claim(0, deaths=0)
    inherited.is_loading = False
    dead.update(inherited)
    assert claims_of(store, 1).next(lambda: False) == Claim(0, deaths=1)


def test_what_a_stopped_engine_leaves_is_free_for_the_next_command(tmp_path):
    store, stopped = LocalStore(tmp_path), {"run": "first"}
    process = Process(store, "engine", stopped)
    with process.registered():
        claims = Claims(store, process, range(1), nothing)
        claim = claims.next(lambda: False)
        assert claim is not None
        claims.release(claim.number)
        other = Claims(store, Process(store, "engine", stopped), range(1), nothing)
        assert other.next(lambda: False) is None
    process.remove()
    later = Claims(store, Process(store, "engine", {"run": "second"}), range(1), nothing)
    assert later.next(lambda: False) == Claim(0, deaths=0)
