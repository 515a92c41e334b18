"""The KV cache: rows inserted late, moved or removed give the results of a single row."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine.tokenizer import left_pad
from pgcli.model import kv_cache as module
from pgcli.model.config import DecoderConfig
from pgcli.model.kv_cache import KVCache
from pgcli.model.paligemma import PaliGemma
from tests.support.sequences import prompts_of_many_lengths
from tests.support.tiny import PATCHES, normal

EXACT = {"rtol": 0, "atol": 1e-10}


def unit_cache(max_rows: int, *, window: int | None = None, fixed_shape: bool = False) -> KVCache:
    """A small cache without a model."""
    config = DecoderConfig(8, 3, 8, 2, 2, 4, vocab_size=9, sliding_window=window)
    return KVCache(config, max_rows=max_rows, like=torch.empty(0), fixed_shape=fixed_shape)


class OperationCounter(TorchDispatchMode):
    """Counts the operations other than views."""

    operations = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.operations += not function.is_view
        return function(*args, **(kwargs or {}))


@pytest.fixture(params=["tiny", "tiny2"])
def model(request, device) -> PaliGemma:
    folder: Path = request.getfixturevalue(request.param)
    return weights.load_paligemma(folder, read_config(folder), dtype=torch.float64, device=device)


def features(model: PaliGemma, count: int) -> Tensor:
    return normal(count, PATCHES, model.config.decoder.width).to(model.projector.weight.device)


def prefill(model: PaliGemma, cache: KVCache, patch_BPD: Tensor, ids: list[list[int]]) -> None:
    token_BT, is_real_BT = left_pad(ids)
    device = patch_BPD.device
    is_real = None if is_real_BT is None else is_real_BT.to(device)
    model.prefill(patch_BPD, token_BT.to(device), is_real, cache)


@pytest.mark.parametrize("fixed_shape", [False, True])
def test_a_row_continues_as_it_would_alone(model, fixed_shape):
    """A row inserted late, moved into a hole, next to longer rows, while the cache grows."""
    ids, patch_BPD = prompts_of_many_lengths(6), features(model, 6)
    tokens = torch.randint(300, 700, (6, 9), device=patch_BPD.device)
    alone = []
    for row in range(6):
        own = model.kv_cache(1)
        prefill(model, own, patch_BPD[[row]], [ids[row]])
        steps = [model.decode_step(tokens[[row], n], own)[0] for n in range(9)]
        alone.append(torch.stack(steps))

    cache, done, rows = model.kv_cache(4, fixed_shape=fixed_shape), [0] * 6, []

    def join(new: list[int]) -> None:
        prefill(model, cache, patch_BPD[new], [ids[row] for row in new])
        rows.extend(new)

    def step() -> None:
        newest = torch.stack([tokens[row, done[row]] for row in rows])
        for row, logits in zip(rows, model.decode_step(newest, cache), strict=True):
            torch.testing.assert_close(logits, alone[row][done[row]], **EXACT)
            done[row] += 1

    def leave(ended: list[int]) -> None:
        order = cache.remove([rows.index(row) for row in ended])
        rows[:] = [rows[former] for former in order]

    join([0, 1])
    step()
    join([2, 3])
    step()
    assert cache.rows == 4
    leave([1])
    step()
    join([4])
    step()
    leave([0, 3])
    assert cache.rows == 2
    step()
    join([5])
    for _ in range(4):
        step()
    assert all(done[row] > 3 for row in rows)


@pytest.mark.parametrize("fixed_shape", [False, True])
def test_growth_keeps_stored_values(model, monkeypatch, fixed_shape):
    ids, patch_BPD = prompts_of_many_lengths(2), features(model, 2)
    tokens = torch.randint(300, 700, (2, 12), device=patch_BPD.device)
    found = []
    for bucket in (1, 7, 128):
        monkeypatch.setattr(module, "BUCKET", bucket)
        cache = model.kv_cache(2, fixed_shape=fixed_shape)
        prefill(model, cache, patch_BPD, ids)
        found.append(torch.stack([model.decode_step(token_B, cache) for token_B in tokens.T]))
    torch.testing.assert_close(found[0], found[1], **EXACT)
    torch.testing.assert_close(found[0], found[2], **EXACT)


def test_a_cache_of_fixed_shape_allocates_all_rows_after_a_few():
    cache, allocated = unit_cache(32, fixed_shape=True), []
    for rows in (1, 2, 3, 5, 32):
        cache.reserve(rows, 1)
        allocated.append(cache.allocated_rows)
    assert allocated == [1, 2, 4, 32, 32]


def test_a_step_keeps_its_addresses_and_shapes_in_reserved_slots():
    cache = unit_cache(4, fixed_shape=True, window=8)
    cache.insert(4, 20, new_slots=200)
    before, shapes = [one.data_ptr() for one in cache._buffers], set()
    for _ in range(200):
        position, masks = cache.append()
        key, _ = cache.write(0, *torch.zeros(2, 4, 2, 1, 4))
        shapes.add((position.shape, masks.full.shape, masks.sliding.shape, key.shape))
    assert [one.data_ptr() for one in cache._buffers] == before
    assert cache.slots == 256
    assert len(shapes) == 1


@pytest.mark.parametrize("fixed_shape", [False, True])
def test_rows_that_move_together_keep_their_values(fixed_shape):
    """With a fixed shape, as on a GPU, a few operations copy them."""
    cache, tokens = unit_cache(40, fixed_shape=fixed_shape), torch.arange(40)
    for slots in (5, 9):
        cache.insert(20, slots)
        cache.write(0, *torch.randn(2, 20, 2, slots, 4))
    before = [one.clone() for one in cache.tensors]
    with OperationCounter() as counter:
        order = cache.remove(range(0, 40, 2), [tokens])
    assert sorted(order) == [*range(1, 40, 2)]
    assert tokens[:20].tolist() == order
    for old, new in zip(before[1:5], cache.tensors[1:5], strict=True):
        assert torch.equal(new[:20], old[order])
    for row, former in enumerate(order):
        used = cache.lengths[row]
        old = before[0][0, :, former, :, :used]
        assert torch.equal(cache.tensors[0][0, :, row, :, :used], old)
    assert not fixed_shape or counter.operations < 20


@pytest.mark.parametrize("max_rows", [3, 8])
def test_rows_of_equal_length_need_no_mask(max_rows):
    cache = unit_cache(max_rows)
    cache.insert(3, 19)
    position, masks = cache.append()
    assert position[:3].tolist() == [[20]] * 3
    assert masks.full is None


def test_a_branch_leaves_the_cache_unchanged(model):
    ids, patch_BPD = [[2, 300, 108], [2, 301, 108]], features(model, 2)
    cache, other = model.kv_cache(2), model.kv_cache(2)
    prefill(model, cache, patch_BPD, ids)
    prefill(model, other, patch_BPD, ids)
    token_BL = torch.randint(300, 700, (2, 5), device=patch_BPD.device)
    branch_BL = torch.tensor([[0, 0, 1, 1, -1], [0, 1, 1, 2, 2]], device=patch_BPD.device)
    model.score_branches(token_BL, branch_BL, cache)
    assert cache.lengths == other.lengths
    for token_B in token_BL.T:
        expected = model.decode_step(token_B, other)
        torch.testing.assert_close(model.decode_step(token_B, cache), expected, **EXACT)
