"""Rows that go on together, each at its own length: seats, holes, growth, and nothing mixed up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine import generate as generate_module
from pgcli.engine.generate import Running, generate
from pgcli.engine.sampler import GREEDY, Sampling
from pgcli.engine.sequence import Limits
from pgcli.engine.tokenizer import left_pad
from pgcli.model import places as places_module
from pgcli.model.paligemma import PaliGemma
from tests.support.random_weights import normal

PATCHES = 16


@pytest.fixture(params=["tiny", "tiny2"])
def model(request: pytest.FixtureRequest, device: str) -> PaliGemma:
    folder: Path = request.getfixturevalue(request.param)
    return weights.load(folder, read_config(folder), dtype=torch.float64, device=device)


def prompts(count: int) -> list[list[int]]:
    """Of 2 to 12 tokens, all different."""
    draws = random.Random(3)
    return [
        [2, *(draws.randrange(300, 700) for _ in range(draws.randrange(0, 11))), 108]
        for _ in range(count)
    ]


def looked(model: PaliGemma, count: int) -> Tensor:
    return normal(count, PATCHES, model.config.decoder.width).to(model.projector.weight.device)


def prefix(model: PaliGemma, patch_BPD: Tensor, told: list[list[int]]) -> object:
    token_BT, is_real_BT = left_pad(told)
    device = patch_BPD.device
    cache = model.cache(rows=len(told), slots=PATCHES + token_BT.shape[1])
    is_real = None if is_real_BT is None else is_real_BT.to(device)
    model.prefill(patch_BPD, token_BT.to(device), is_real, cache)
    return cache


def test_a_row_goes_on_as_it_would_alone_wherever_it_sits(model: PaliGemma) -> None:
    """Seated late, moved into a hole, beside longer ones and across a growth of memory."""
    told, patch_BPD = prompts(6), looked(model, 6)
    tokens = torch.randint(300, 700, (6, 9), device=patch_BPD.device)
    alone = []
    for row in range(6):
        places = model.places(1)
        places.seat(prefix(model, patch_BPD[[row]], [told[row]]), [0])
        alone.append(torch.stack([model.step(tokens[[row], n], places)[0] for n in range(9)]))

    places, done, seated = model.places(4), [0] * 6, []

    def join(rows: list[int]) -> None:
        places.seat(prefix(model, patch_BPD[rows], [told[row] for row in rows]), range(len(rows)))
        seated.extend(rows)

    def step() -> None:
        given = torch.stack([tokens[row, done[row]] for row in seated])
        for row, logits in zip(seated, model.step(given, places), strict=True):
            torch.testing.assert_close(logits, alone[row][done[row]], rtol=0, atol=1e-10)
            done[row] += 1

    def leave(rows: list[int]) -> None:
        seats = places.leave([seated.index(row) for row in rows])
        seated[:] = [seated[seat] for seat in seats]

    join([0, 1])
    step()
    join([2, 3])
    step()
    assert places.free == 0
    leave([1])
    step()
    join([4])
    step()
    leave([0, 3])
    assert (places.free, places.taken) == (2, 2)
    step()
    join([5])
    for _ in range(4):
        step()
    assert all(done[row] > 3 for row in seated)


def test_memory_grows_by_buckets_and_keeps_what_it_holds(
    model: PaliGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, patch_BPD = prompts(2), looked(model, 2)
    tokens = torch.randint(300, 700, (2, 12), device=patch_BPD.device)
    found = []
    for bucket in (1, 7, 128):
        monkeypatch.setattr(places_module, "BUCKET", bucket)
        places = model.places(2)
        places.seat(prefix(model, patch_BPD, told), [0, 1])
        found.append(torch.stack([model.step(token_B, places) for token_B in tokens.T]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-10)


def test_few_rows_take_little_whatever_the_number_of_places(model: PaliGemma) -> None:
    places = model.places(1000)
    for rows in (1, 2, 3):
        places.seat(prefix(model, looked(model, rows), prompts(rows)), range(rows))
        assert places._memory.shape[2] <= 2 * places.taken
    assert places.free == 994


def test_at_most_as_many_rows_move_as_end(model: PaliGemma) -> None:
    places = model.places(5)
    places.seat(prefix(model, looked(model, 5), prompts(5)), range(5))
    assert places.leave([1, 4]) == [0, 3, 2]
    assert places.leave([2]) == [0, 1]
    assert places.leave([0, 1]) == []
    assert places.free == 5


@pytest.mark.parametrize(
    ("taken", "places_there", "rows"),
    [(1, 99, 1), (2, 99, 2), (3, 99, 4), (5, 5, 5), (5, 99, 8), (8, 99, 8), (57, 60, 60)],
)
def test_a_step_has_one_of_few_numbers_of_rows(
    model: PaliGemma, taken: int, places_there: int, rows: int
) -> None:
    places = model.places(places_there)
    places.filled, places.free = [3] * taken, places_there - taken
    assert places.made_up == rows


def test_places_that_nobody_has_change_nothing(
    model: PaliGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows in a step of four: the same scores, also where the fourth comes to be seated."""
    told, patch_BPD = prompts(4), looked(model, 4)
    tokens = torch.randint(300, 700, (6, 4), device=patch_BPD.device)
    found = []
    for buckets in (((10**9, 1),), ((10**9, 4),)):
        monkeypatch.setattr(places_module, "ROW_BUCKETS", buckets)
        places = model.places(8)
        places.seat(prefix(model, patch_BPD[:3], told[:3]), range(3))
        steps = [model.step(token_B[:3], places) for token_B in tokens[:3]]
        places.seat(prefix(model, patch_BPD[3:], told[3:]), [0])
        steps += [model.step(token_B, places)[:3] for token_B in tokens[3:]]
        assert [len(logits) for logits in steps] == [3] * 6
        found.append(torch.stack(steps))
        assert places.taken == 4
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)


def test_rows_of_equal_length_need_no_mask_whoever_is_made_up(model: PaliGemma) -> None:
    places = model.places(8)
    told = [[2, 300, 108], [2, 301, 108], [2, 302, 108]]
    places.seat(prefix(model, looked(model, 3), told), [0, 1, 2])
    position, masks = places.claim_next()
    assert position.tolist() == [[20]] * 4
    assert masks.full is None


def test_rows_of_equal_length_need_no_mask(model: PaliGemma) -> None:
    places = model.places(2)
    patch_BPD = looked(model, 2)
    places.seat(prefix(model, patch_BPD, [[2, 300, 108], [2, 301, 108]]), [0, 1])
    position, masks = places.claim_next()
    assert position.tolist() == [[20], [20]]
    assert masks.full is None


def test_a_row_sees_its_own_last_positions_whatever_the_others_have(tiny2: Path) -> None:
    """The window of that checkpoint is 6; here prefixes of 18 and 20 slots stand side by side."""
    model = weights.load(tiny2, read_config(tiny2), dtype=torch.float32)
    places = model.places(3)
    told = [[2, 108], [2, 300, 301, 108], [2, 108]]
    places.seat(prefix(model, looked(model, 3).float(), told), range(3))
    places.leave([0])
    _, masks = places.claim_next()
    seen = [row.nonzero().flatten().tolist() for row in masks.sliding[:, 0, 0]]
    assert seen == [[13, 14, 15, 16, 17, 18], [15, 16, 17, 18, 19, 20]]
    assert [int(row.sum()) for row in masks.full[:, 0, 0]] == [19, 21]


class TestRunning:
    def test_rows_that_join_later_answer_as_they_would_alone(self, model: PaliGemma) -> None:
        told, patch_BPD = prompts(7), looked(model, 7)
        limits = Limits(8, frozenset({1}), model.config.decoder.vocab_size, 10**9)
        keys = [str(row) for row in range(7)]
        alone = [
            generate(model, patch_BPD[[row]], [told[row]], [keys[row]], limits, GREEDY)[0].tokens
            for row in range(7)
        ]
        running = Running(model, 3, limits, GREEDY)
        rows = running.begun(keys)
        for first in (0, 2, 3, 5, 6):
            group = slice(first, {0: 2, 2: 3, 3: 5, 5: 6, 6: 7}[first])
            while running.free < group.stop - group.start:
                running.step()
            running.join(patch_BPD[group], told[group], rows[group])
        while running.rows:
            running.step()
        assert [row.tokens for row in rows] == alone
        assert len({len(tokens) for tokens in alone} | {tuple(t) for t in alone}) > 2

    @pytest.mark.parametrize("temperature", [0.0, 1.5])
    def test_tokens_read_behind_the_passes_are_the_same(
        self, model: PaliGemma, monkeypatch: pytest.MonkeyPatch, temperature: float
    ) -> None:
        """As on a GPU, which does not wait until this process has read what it made."""
        told, patch_BPD = prompts(9), looked(model, 9)
        stops = frozenset(range(0, model.config.decoder.vocab_size, 9))
        limits = Limits(12, stops, model.config.decoder.vocab_size, 10**9)
        keys, lengths = [str(row) for row in range(9)], [1, 12, 3, 12, 12, 2, 12, 12, 7]
        kind, found = model.projector.weight.device.type, []
        for lag in (0, 1, 2, 5):
            monkeypatch.setitem(generate_module.LAGS, kind, lag)
            running = Running(model, 4, limits, Sampling(temperature=temperature, seed=3))
            rows, ended, passes = running.begun(keys, lengths), [], 0
            for row in range(9):
                while not running.free:
                    ended += running.step()
                    passes += 1
                group = slice(row, row + 1)
                ended += running.join(patch_BPD[group], told[group], rows[group])
            while running.rows:
                ended += running.step()
                passes += 1
            assert sorted(map(id, ended)) == sorted(map(id, rows)), "each ends once"
            assert running.free == 4
            assert passes <= 40 + 9 * lag
            found.append([(row.tokens, row.logprobs, row.finish, row.stopped) for row in rows])
        assert len({len(tokens) for tokens, *_ in found[0]}) > 3
        for behind in found[1:]:
            for (tokens, logprobs, *end), (others, their_logprobs, *their_end) in zip(
                found[0], behind, strict=True
            ):
                assert tokens == others
                assert end == their_end
                assert logprobs == pytest.approx(their_logprobs, abs=1e-9)

    def test_what_is_read_behind_is_forgotten_with_its_rows(
        self, model: PaliGemma, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(generate_module.LAGS, model.projector.weight.device.type, 2)
        limits = Limits(5, frozenset({1}), model.config.decoder.vocab_size, 10**9)
        running = Running(model, 2, limits, GREEDY)
        told, patch_BPD = prompts(2), looked(model, 2)
        lost, rows = running.begun(["a", "b"]), running.begun(["a", "b"])
        running.join(patch_BPD, told, lost)
        running.step()
        running.drop()
        running.join(patch_BPD, told, rows)
        while running.rows:
            running.step()
        wanted = generate(model, patch_BPD, told, ["a", "b"], limits, GREEDY)
        assert [row.tokens for row in rows] == [row.tokens for row in wanted]
        assert not any(row.tokens for row in lost)
