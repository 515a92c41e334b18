"""The computed memory of a model and a batch, compared with the measured memory."""

import weakref
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine import loader, memory, model_runner
from pgcli.engine.image_cache import MAX_BYTES as MAX_FEATURE_BYTES
from pgcli.engine.memory import (
    BLOCK_BYTES,
    CUDA_BYTES,
    ENOUGH_ROWS,
    GROUP_TOKENS,
    LONG_PROMPT,
    MOST_ROWS,
    NEW_TOKENS,
    ROWS_OF_LARGE_ON_CPU,
    SHARE_OF_FREE,
    MemoryBudget,
    batch_bytes,
    cache_bytes,
    cuda_bytes,
    group_bytes,
    group_size,
    has_several_prompts,
    memory_named,
    needed_bytes,
    parameters,
    row_bytes,
)
from pgcli.engine.recorded_step import StepRecorder
from pgcli.engine.sampler import OutputVocabulary
from pgcli.errors import NoUsableDevice
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.cuda.optimize import fuse
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized import quantize_mlps
from pgcli.tasks import Question
from tests.support.published import PUBLISHED
from tests.support.sequences import record_on_tape, run_together


def second(*sizes):
    decoder = DecoderConfig(*sizes, post_norms=True, attn_softcap=50.0)
    return replace(PUBLISHED, decoder=decoder)


SECOND = second(2304, 26, 9216, 8, 4, 256, 257216)
#: Free MiB after CUDA's start, bytes per number, and batch sizes: 3b of PaliGemma 1 at 224 and 448,
#: and of PaliGemma 2.
CARDS = {
    "RTX 4090, 24 GB": (23_600, 2, 256, 256, 223, 83),
    "A10, 24 GB": (22_500, 2, 256, 256, 209, 70),
    "L4, 24 GB": (22_500, 2, 256, 256, 209, 70),
    "RTX 3060, 12 GB": (11_300, 2, 73, 118, 80, 28),
    "RTX 4060, 8 GB": (7_200, 2, 59, 28, 8, 3),
    "T4, 16 GB, float32": (14_900, 4, 106, 44, 19, 6),
    "T4, 16 GB, float16": (14_900, 2, 205, 90, 87, 51),
}
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


def test_activations_are_counted_for_a_group_and_not_for_every_row():
    """At 896 px a 24 GB GPU holds more than twice the rows of a single prefill."""
    vision = replace(PUBLISHED.vision, resolution=896)
    config = replace(PUBLISHED, vision=vision)
    assert config.image_tokens == 4096
    free = 24 * 10**9 - 2 * parameters(config)
    rows = MemoryBudget(config, 2, "cuda", free).batch_size()
    each = row_bytes(config, 2, device="cuda") + group_bytes(config, 2, 1, "cuda")
    assert rows > 2.2 * (SHARE_OF_FREE["cuda"] * free // each)
    group = group_size(config, rows, GROUP_TOKENS["cuda"][0])
    assert group < rows / 2
    recorded = cuda_bytes(config, 2, rows, 0) - CUDA_BYTES
    assert recorded > rows * 6 * config.decoder.vocab_size  # a recorded step's logits
    assert cuda_bytes(config, 2, 0, group) - CUDA_BYTES == group * 896 * 896 * 3  # pixels


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


@pytest.mark.parametrize("quantize", ["none", "fp8"])
@pytest.mark.parametrize("generation", [1, 2])
def test_a_batch_with_recorded_steps_takes_at_most_the_computed_memory(
    generation, quantize, monkeypatch
):
    """As on a GPU: fixed slots, fused layers, and the memory that a recorded step keeps."""
    config, rows, itemsize = SMALL, 6, 2
    if generation == 2:
        decoder = replace(SMALL.decoder, post_norms=True, attn_softcap=9.0, final_softcap=3.0)
        config = replace(SMALL, decoder=decoder)
    torch.manual_seed(0)
    model = PaliGemma(config).to(torch.bfloat16).eval().requires_grad_(False)
    if quantize != "none":
        quantize_mlps(model)
    fuse(model)
    monkeypatch.setitem(model_runner.ASYNC_DEPTH, "cpu", 1)
    monkeypatch.setattr(model, "kv_cache", partial(model.kv_cache, fixed_shape=True))
    held = []

    def recorded(step):
        with Peak() as peak:
            recording = record_on_tape(step)
        held.append(peak.most)
        return recording

    monkeypatch.setattr(model_runner, "step_recorder", lambda model: StepRecorder(recorded))
    prompts = [[2, *range(200, 200 + length), 108] for length in range(62, 62 - rows, -1)]
    vocabulary = OutputVocabulary(config.decoder.vocab_size, config.image_token_id, ())
    with torch.inference_mode(), Peak() as peak:
        patch_BPD = model.encode(torch.zeros(rows, 3, 112, 112, dtype=torch.bfloat16))
        done = run_together(model, patch_BPD, prompts, vocabulary, 4)
    assert [len(row.tokens) for row in done] == [4] * rows
    assert len(held) == 1
    computed = batch_bytes(config, itemsize, rows, device="cuda", new_tokens=4) - CUDA_BYTES
    taken = peak.most + held[0]  # plain versions of fused operators take more than kernels
    assert taken < computed
    if generation == 1:  # PaliGemma 2 has blocks of scores of a constant number
        assert taken > computed / 4
    assert held[0] > (cuda_bytes(config, itemsize, rows, 0) - CUDA_BYTES) / 2


class TestBatchSize:
    @pytest.mark.parametrize("device", MOST_ROWS)
    @pytest.mark.parametrize("config", [PUBLISHED, SMALL], ids=["published", "small"])
    def test_the_batch_size_fits_into_the_share_of_free_memory(self, device, config):
        for rows in (1, 2, 7, 13):
            free = int(batch_bytes(config, 2, rows, device=device) / SHARE_OF_FREE[device]) + 9
            found = MemoryBudget(config, 2, device, free).batch_size()
            assert found >= rows
            assert batch_bytes(config, 2, found, device=device) <= SHARE_OF_FREE[device] * free
            more = batch_bytes(config, 2, found + 1, device=device)
            assert more > SHARE_OF_FREE[device] * free

    def test_the_batch_size_is_useful(self):
        """At least a row, at most as many as the device needs, and few for large models on CPUs."""
        for config, free, sizes in (
            (PUBLISHED, 0, {"cpu": 1, "mps": 1, "cuda": 1}),
            (SMALL, 2**50, MOST_ROWS),
            (PUBLISHED, 2**50, MOST_ROWS | {"cpu": ROWS_OF_LARGE_ON_CPU}),
        ):
            found = {name: MemoryBudget(config, 2, name, free).batch_size() for name in MOST_ROWS}
            assert found == sizes

    @pytest.mark.parametrize("card", CARDS)
    def test_small_gpus_have_useful_batch_sizes(self, card):
        """For 3b models with answers of 64 tokens; a display takes half a gigabyte."""
        mebibytes, itemsize, *expected = CARDS[card]
        found = []
        for config, resolution in product((PUBLISHED, SECOND), (224, 448)):
            config = replace(config, vision=replace(config.vision, resolution=resolution))
            free = mebibytes * 2**20 - itemsize * parameters(config)
            found.append(MemoryBudget(config, itemsize, "cuda", free).batch_size(64))
        assert found == expected

    def test_groups_are_smaller_if_few_rows_would_fit(self, tiny, monkeypatch):
        monkeypatch.setitem(GROUP_TOKENS, "cpu", (2048, 128))
        engine = loader.open_engine(Checkpoint("m", tiny), device="cpu", dtype="float32")
        config, question = engine.model.config, Question("ask", None, 64)
        for rows, tokens in ((ENOUGH_ROWS, 2048), (ENOUGH_ROWS // 2, 128)):
            needed = batch_bytes(config, 4, rows, new_tokens=64, group_tokens=tokens)
            engine._budget = MemoryBudget(config, 4, "cpu", int(needed / SHARE_OF_FREE["cpu"]) + 9)
            list(engine.ask([], question))
            assert engine.batch_size >= rows
            assert engine._group_rows(question, rows) == group_size(config, rows, tokens)

    def test_features_take_memory_if_images_have_several_prompts(self):
        budget = MemoryBudget(PUBLISHED, 2, "cuda", 3 * 10**9)
        fewer = budget.batch_size(64, shares_images=True)
        needed = batch_bytes(PUBLISHED, 2, fewer + 1, device="cuda", new_tokens=64)
        assert needed <= 0.85 * 3e9 < needed + MAX_FEATURE_BYTES
        several, one = Question("ask", ("a", "b"), 64), Question("ask", ("a",), 64)
        assert [*map(has_several_prompts, (several, one, Question("ask", None, 64)))] == [
            *(True, False, False)
        ]

    def test_an_automatic_batch_size_depends_on_the_question(self, tiny):
        engine = loader.open_engine(Checkpoint("m", tiny), device="cpu", dtype="float32")
        free = int(batch_bytes(engine.model.config, 4, 9, new_tokens=64) / SHARE_OF_FREE["cpu"]) + 9
        engine._budget = MemoryBudget(engine.model.config, 4, "cpu", free)
        list(engine.ask([], Question("ask", None, 64)))
        assert engine.batch_size == 9
        list(engine.ask([], Question("ask", None, 4096)))
        assert engine.batch_size < 9

    def test_a_given_batch_size_is_kept(self, tiny):
        engine = loader.open_engine(Checkpoint("m", tiny), device="cpu", batch_size=7)
        list(engine.ask([], Question("ask", None, 4096)))
        assert engine.batch_size == 7
        automatic = loader.open_engine(Checkpoint("m", tiny), device="cpu")
        automatic.batch_size = 5
        list(automatic.ask([], Question("ask", None, 4096)))
        assert automatic.batch_size == 5


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


def test_an_oom_error_names_its_purpose_and_a_remedy():
    caught, problem = (
        pytest.raises(NoUsableDevice, match="no memory left for a batch"),
        MemoryError(),
    )
    with caught as refused, memory_named("a batch of 9", "take less"):
        raise problem
    assert refused.value.hint == "take less"
    assert refused.value.__cause__ is problem


def test_other_errors_are_raised_unchanged():
    with pytest.raises(RuntimeError, match="shapes"), memory_named("a batch", "take less"):
        raise RuntimeError("shapes do not match")
