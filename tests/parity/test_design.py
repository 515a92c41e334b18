"""The five central tests of the design; the fifth (a bad image) is in test_end_to_end.py."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine.tokenizer import left_pad
from pgcli.model.attention import AttentionMasks
from pgcli.model.paligemma import PaliGemma
from tests.support.sequences import run_together, vocabulary_of

PROMPTS = [[2, 300, 108], [2, 301, 302, 303, 304, 305, 108], [2, 108], [2, 420, 421, 108]]
STEPS = 8


@pytest.fixture(params=["tiny", "tiny2"])
def model(request, device) -> PaliGemma:
    """Both generations; the second has softcaps and a window shorter than any prefix."""
    folder: Path = request.getfixturevalue(request.param)
    return weights.load_paligemma(folder, read_config(folder), dtype=torch.float64, device=device)


@pytest.fixture
def patch_BPD(model, device) -> Tensor:
    side = model.config.vision.resolution
    generator = torch.Generator().manual_seed(3)
    pixels = torch.rand(len(PROMPTS), 3, side, side, generator=generator, dtype=torch.float64)
    return model.encode((pixels * 2 - 1).to(device))


def answer(model: PaliGemma, patch_BPD: Tensor, prompts: list[list[int]]) -> list[list[int]]:
    rows = run_together(model, patch_BPD, prompts, vocabulary_of(model, 1), STEPS)
    return [row.tokens for row in rows]


def test_answers_do_not_depend_on_the_batch_size(model, patch_BPD):
    together = answer(model, patch_BPD, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        assert answer(model, patch_BPD[row : row + 1], [prompt]) == [together[row]]
    assert len({tuple(tokens) for tokens in together}) > 1, "rows that all agree prove nothing"


@pytest.mark.parametrize("extra", [1, 2, 3, 7, 16, 33])
@pytest.mark.parametrize("junk", [0, 1, 2, 77])
def test_padding_of_any_width_does_not_change_logits(model, patch_BPD, extra, junk):
    token_BT, is_real_BT = left_pad(PROMPTS)
    token_BT, is_real_BT = token_BT.to(patch_BPD.device), is_real_BT.to(patch_BPD.device)
    plain = logits_of(model, patch_BPD, token_BT, is_real_BT)
    token_BT = torch.where(is_real_BT, token_BT, junk)
    more = token_BT.new_full((len(PROMPTS), extra), junk)
    padded = logits_of(
        model,
        patch_BPD,
        torch.cat([more, token_BT], dim=1),
        torch.cat([torch.zeros_like(more, dtype=torch.bool), is_real_BT], dim=1),
    )
    torch.testing.assert_close(padded, plain, rtol=0, atol=1e-10)


def test_cached_decode_equals_a_full_pass(model, patch_BPD):
    device = patch_BPD.device
    token_BT, is_real_BT = left_pad(PROMPTS)
    token_BT, is_real_BT = token_BT.to(device), is_real_BT.to(device)
    answers = torch.randint(300, 700, (len(PROMPTS), STEPS), device=device)
    rows, patches, _ = patch_BPD.shape
    cache = model.kv_cache(rows)
    cached = [model.prefill(patch_BPD, token_BT, is_real_BT, cache)]
    cached += [model.decode_step(token_B, cache) for token_B in answers.T]

    everything_BT = torch.cat([token_BT, answers], dim=1)
    image = is_real_BT.new_ones(rows, patches)
    generated = is_real_BT.new_ones(rows, STEPS)
    is_real_BS = torch.cat([image, is_real_BT, generated], dim=1)
    is_prefix_BS = torch.cat([image, is_real_BT, ~generated], dim=1)
    place_BS = is_real_BS.cumsum(1)
    masks = make_masks(is_real_BS, is_prefix_BS, place_BS, model.config.decoder.sliding_window)
    hidden = model(patch_BPD, everything_BT, place_BS, masks)
    whole = model.decoder.logits(hidden[:, token_BT.shape[1] - 1 :])
    torch.testing.assert_close(torch.stack(cached, dim=1), whole, rtol=0, atol=1e-10)


def test_finished_rows_do_not_affect_other_rows(model, patch_BPD):
    """Each row stops at any token that is made the stop token, and no other row changes."""
    endless = answer(model, patch_BPD, PROMPTS)
    for stop in {token for tokens in endless for token in tokens}:
        rows = run_together(model, patch_BPD, PROMPTS, vocabulary_of(model, stop), STEPS)
        for row, tokens in zip(rows, endless, strict=True):
            cut = tokens[: tokens.index(stop) + 1] if stop in tokens else tokens
            assert row.tokens == cut
            assert row.finish == ("stop" if stop in tokens else "length")


def test_decode_step_processes_one_token_per_row(model, patch_BPD, monkeypatch):
    """Prefill computes logits only for the last position: a row of logits takes a mebibyte."""
    monkeypatch.setattr("pgcli.engine.model_runner.step_recorder", lambda model: None)
    read, scored, logits = [], [], model.decoder.logits
    layer = model.decoder.layers[0]
    hook = layer.register_forward_hook(lambda *call: read.append(tuple(call[-1].shape[:2])))
    monkeypatch.setattr(model.decoder, "logits", lambda x: scored.append(x.shape[:-1]) or logits(x))
    endless = vocabulary_of(model, image_token=model.config.image_token_id)
    run_together(model, patch_BPD, PROMPTS, endless, 4)
    hook.remove()
    assert read == [(4, patch_BPD.shape[1] + 7), (4, 1), (4, 1), (4, 1)]
    assert scored == [(4,)] * 4


def logits_of(model: PaliGemma, patch_BPD: Tensor, token_BT: Tensor, is_real_BT: Tensor) -> Tensor:
    """The logits of the prefill and of two steps after it."""
    cache = model.kv_cache(len(token_BT))
    found = [model.prefill(patch_BPD, token_BT, is_real_BT, cache)]
    for token in (300, 301):
        found.append(model.decode_step(token_BT.new_full((len(token_BT),), token), cache))
    return torch.stack(found)


def make_masks(
    is_real_BS: Tensor, is_prefix_BS: Tensor, position_BS: Tensor, window: int | None
) -> AttentionMasks:
    """The masks of layers without and with a sliding window, which limits only answers."""
    full = prefix_lm_mask(is_real_BS, is_prefix_BS)
    if window is None:
        return AttentionMasks(full, full)
    within_BSS = position_BS[:, None, :] > position_BS[:, :, None] - window
    return AttentionMasks(full, full & (within_BSS | is_prefix_BS[:, :, None])[:, None])


def prefix_lm_mask(is_real_BS: Tensor, is_prefix_BS: Tensor) -> Tensor:
    """Which keys each query attends to, (B, 1, S, S): the prefix to itself, the answer to the past.

    For a prefix of two slots, one of padding and an answer of two (query by row, key by column):

        1 1 0 0 0
        1 1 0 0 0
        1 1 0 0 0
        1 1 0 1 0
        1 1 0 1 1
    """
    slots = is_real_BS.shape[1]
    earlier_SS = torch.ones(slots, slots, dtype=torch.bool, device=is_real_BS.device).tril()
    allowed_BSS = (is_prefix_BS[:, None, :] | earlier_SS) & is_real_BS[:, None, :]
    return allowed_BSS[:, None]
