"""The computed memory of a model and a batch, compared with the measured memory."""

import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine import loader, memory
from pgcli.engine.memory import (
    BLOCK_BYTES,
    LONG_PROMPT,
    MOST_ROWS,
    NEW_TOKENS,
    ROWS_OF_LARGE_ON_CPU,
    SHARE_OF_FREE,
    MemoryBudget,
    batch_bytes,
    cache_bytes,
    group_bytes,
    needed_bytes,
    parameters,
    row_bytes,
)
from pgcli.engine.sampler import OutputVocabulary
from pgcli.errors import NoUsableDevice
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.tasks import Question
from tests.support.published import PUBLISHED
from tests.support.sequences import run_together


def second(*sizes):
    decoder = DecoderConfig(*sizes, post_norms=True, attn_softcap=50.0)
    return replace(PUBLISHED, decoder=decoder)


SECOND = second(2304, 26, 9216, 8, 4, 256, 257216)
SMALL = PaliGemmaConfig(
    VisionConfig(64, 2, 128, 4, patch_size=14, resolution=112),
    DecoderConfig(96, 4, 256, 4, 2, 16, vocab_size=1024),
    image_token_id=1023,
)


@given(
    tied=st.booleans(),
    sizes=st.lists(st.integers(1, 5), min_size=8, max_size=8),
    kv_heads=st.integers(1, 3),
    post_norms=st.booleans(),
)
@settings(max_examples=25)
def test_the_parameter_count_equals_the_models(tied, sizes, kv_heads, post_norms):
    a, b, c, d, e, f, g, h = sizes
    vision = VisionConfig(4 * a, b, c, 2, patch_size=d, resolution=d * e)
    heads = (2 * kv_heads, kv_heads, 2 * a)
    decoder = DecoderConfig(f, g, h, *heads, vocab_size=b * c, post_norms=post_norms)
    config = PaliGemmaConfig(vision, decoder, image_token_id=1, tied=tied)
    assert parameters(config) == sum(p.numel() for p in PaliGemma(config).parameters())


@pytest.mark.parametrize(
    ("config", "count", "cache_kib"),
    [
        (PUBLISHED, 2_924_220_144, 18),  # 18 layers, one key/value head of 256 in bfloat16
        (SECOND, 3_032_979_696, 104),
        (second(3584, 42, 14336, 16, 8, 256, 257216), 9_663_294_192, 336),
        (second(4608, 46, 36864, 32, 16, 128, 257216), None, 368),
    ],
    ids=["3b", "second 3b", "second 10b", "second 28b"],
)
def test_published_models_need_the_known_memory(config, count, cache_kib):
    assert cache_bytes(config, 2) == cache_kib * 1024
    if count is not None:
        assert parameters(config) - 64 * config.decoder.width == count
    slots = 1024 + LONG_PROMPT + NEW_TOKENS
    assert cache_bytes(config, 2) * slots < row_bytes(config, 2)
    block = 0 if config is PUBLISHED else BLOCK_BYTES  # of softcapped scores
    batch = block + row_bytes(config, 2) + group_bytes(config, 2, 1)
    assert needed_bytes(config, 2, 1) == 2 * parameters(config) + batch


class Peak(TorchDispatchMode):
    """The peak bytes of the tensors created in this mode."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        given = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor)
        }
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in given:
                storage = leaf.untyped_storage()
                self.change(storage.nbytes())
                weakref.finalize(storage, self.change, -storage.nbytes())
        return made

    def change(self, nbytes):
        self.now += nbytes
        self.most = max(self.most, self.now)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 6])
def test_a_batch_takes_at_most_the_computed_memory(dtype, rows):
    """With the longest prompt and the longest answer of the estimate."""
    torch.manual_seed(0)
    model = PaliGemma(SMALL).to(dtype).eval().requires_grad_(False)
    prompts = [[2, *range(200, 200 + length), 108] for length in range(62, 62 - rows, -1)]
    any_token = tuple(range(SMALL.decoder.vocab_size))  # the prefill takes most memory
    vocabulary = OutputVocabulary(SMALL.decoder.vocab_size, SMALL.image_token_id, any_token)
    with torch.inference_mode(), Peak() as peak:
        pixels_BCRR = torch.zeros(rows, 3, 112, 112, dtype=dtype)
        patch_BPD = model.encode(pixels_BCRR)
        done = run_together(model, patch_BPD, prompts, vocabulary, NEW_TOKENS)
    assert [row.finish for row in done] == ["stop"] * rows
    computed = batch_bytes(SMALL, dtype.itemsize, rows)
    assert peak.most < computed
    assert peak.most > computed / 4, "the estimate is far too high"


class TestBatchSize:
    def test_the_batch_size_is_useful(self):
        """At least a row, at most as many as the device needs, and few for large models on CPUs."""
        for config, free, sizes in (
            (PUBLISHED, 0, {"cpu": 1, "mps": 1, "cuda": 1}),
            (SMALL, 2**50, MOST_ROWS),
            (PUBLISHED, 2**50, MOST_ROWS | {"cpu": ROWS_OF_LARGE_ON_CPU}),
        ):
            found = {name: MemoryBudget(config, 2, name, free).batch_size() for name in MOST_ROWS}
            assert found == sizes

    def test_an_automatic_batch_size_depends_on_the_question(self, tiny):
        engine = loader.open_engine(Checkpoint("m", tiny), device="cpu", dtype="float32")
        free = int(batch_bytes(engine.model.config, 4, 9, new_tokens=64) / SHARE_OF_FREE["cpu"]) + 9
        engine._budget = MemoryBudget(engine.model.config, 4, "cpu", free)
        list(engine.ask([], Question("ask", None, 64)))
        assert engine.batch_size == 9
        list(engine.ask([], Question("ask", None, 4096)))
        assert engine.batch_size < 9


@pytest.mark.parametrize(
    ("dtype", "numbers", "fits"),
    [("float32", 4, True), ("float32", 3, False), ("bfloat16", 3, True), ("bfloat16", 1, False)],
)
def test_weights_that_do_not_fit_are_an_error_before_they_are_read(
    tiny, monkeypatch, dtype, numbers, fits
):
    free = parameters(read_config(tiny)) * numbers
    read = []
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    monkeypatch.setattr(loader.weights, "load_paligemma", lambda *_, **__: read.append(1) or 1 / 0)
    with pytest.raises(ZeroDivisionError if fits else NoUsableDevice):
        loader.open_engine(Checkpoint("m", tiny), device="cpu", dtype=dtype, batch_size=1)
    assert bool(read) == fits
