"""Logits over the vocabulary: which are masked, and their log-sum-exp."""

import pytest
import torch

from pgcli.engine import sampler
from pgcli.engine.sampler import OutputVocabulary, logsumexp, mask_invalid


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 7, 99, 100, 1000])
def test_chunked_logsumexp_equals_the_unchunked_one(monkeypatch, dtype, columns):
    monkeypatch.setattr(sampler, "LOGSUMEXP_CHUNK", columns)
    logits_BV = (torch.randn(5, 100, generator=torch.Generator().manual_seed(1)) * 9).to(dtype)
    logits_BV[1, :60] = -torch.inf  # whole parts without a valid token
    found = logsumexp(logits_BV)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, logits_BV.float().logsumexp(-1), rtol=1e-6, atol=1e-6)


def test_logsumexp_chunks_stay_within_their_size(monkeypatch):
    monkeypatch.setattr(sampler, "LOGSUMEXP_CHUNK", 16)
    largest = []
    whole = torch.Tensor.logsumexp
    monkeypatch.setattr(
        torch.Tensor, "logsumexp", lambda x, *dims: (largest.append(x.shape), whole(x, *dims))[1]
    )
    logsumexp(torch.zeros(3, 100))
    assert max(shape[1] for shape in largest if len(shape) == 2 and shape[0] == 3) == 16


def test_invalid_tokens_are_masked_in_place():
    logits_BV = torch.zeros(2, 10)
    found = mask_invalid(logits_BV, OutputVocabulary(8, 3, ()))
    assert found.shape == (2, 8)
    assert found.data_ptr() == logits_BV.data_ptr(), "not a copy"
    assert found[:, 3].isneginf().all()
    assert found.isneginf().sum() == 2
    assert mask_invalid(torch.zeros(2, 10), OutputVocabulary(8, 9, ())).isfinite().all()
