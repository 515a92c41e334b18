"""What a model and each row of a batch are reckoned to take, held against what they take."""

import json
import shutil
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pgcli.checkpoints import files, weights
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.facts import facts
from pgcli.engine.generate import GREEDY, Limits, generate
from pgcli.engine.memory import (
    LARGE_PARAMETERS,
    MOST_ROWS,
    ROWS_OF_LARGE_ON_CPU,
    SHARE_OF_FREE,
    TEXT_SLOTS,
    batch_size,
    parameters,
    row_bytes,
)
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma

#: PaliGemma's first generation, 3b.
PUBLISHED = PaliGemmaConfig(
    VisionConfig(1152, 27, 4304, 16, patch_size=14, resolution=448),
    DecoderConfig(2048, 18, 16384, 8, 1, 256, vocab_size=257216),
    image_token=257152,
)
SMALL = PaliGemmaConfig(
    VisionConfig(64, 2, 128, 4, patch_size=14, resolution=112),
    DecoderConfig(96, 4, 256, 4, 2, 16, vocab_size=1024),
    image_token=1023,
)


@given(
    tied=st.booleans(),
    sizes=st.lists(st.integers(1, 5), min_size=8, max_size=8),
    kv_heads=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_the_count_is_that_of_the_model_itself(tied, sizes, kv_heads):
    a, b, c, d, e, f, g, h = sizes
    vision = VisionConfig(4 * a, b, c, 2, patch_size=d, resolution=d * e)
    decoder = DecoderConfig(f, g, h, 2 * kv_heads, kv_heads, 2 * a, vocab_size=b * c)
    config = PaliGemmaConfig(vision, decoder, image_token=1, tied=tied)
    assert parameters(config) == sum(p.numel() for p in PaliGemma(config).parameters())


def test_the_published_model_takes_what_is_known_of_it():
    assert parameters(PUBLISHED) - 64 * 2048 == 2_924_220_144
    # 18 layers, keys and values, one head of 256 in bfloat16: 18 KiB for each slot
    slots = 1024 + TEXT_SLOTS
    assert row_bytes(PUBLISHED, 2) > 18 * 1024 * slots
    assert row_bytes(PUBLISHED, 2) < 18 * 1024 * slots + 256 * 2**20
    assert row_bytes(PUBLISHED, 2) < row_bytes(PUBLISHED, 4) < 2 * row_bytes(PUBLISHED, 2)


class Peak(TorchDispatchMode):
    """The most bytes of tensors alive at once, of those made under it."""

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
def test_a_row_takes_no_more_than_is_reckoned(dtype, rows):
    """With the longest prompt and room for the longest answer that a row is reckoned with."""
    torch.manual_seed(0)
    model = PaliGemma(SMALL).to(dtype).eval().requires_grad_(False)
    prompts = [[2, *range(200, 200 + length), 108] for length in range(62, 62 - rows, -1)]
    any_token = frozenset(range(SMALL.decoder.vocab_size))  # the prefill takes the most
    limits = Limits(TEXT_SLOTS - 64, any_token, SMALL.decoder.vocab_size, SMALL.image_token)
    with torch.inference_mode(), Peak() as peak:
        pixels_BCRR = torch.zeros(rows, 3, 112, 112, dtype=dtype)
        patch_BPD = model.encode(pixels_BCRR)
        done = generate(model, patch_BPD, prompts, [""] * rows, limits, GREEDY)
    assert [row.finish for row in done] == ["stop"] * rows
    reckoned = rows * row_bytes(SMALL, dtype.itemsize)
    assert peak.most < reckoned
    assert peak.most > reckoned / 4, "a number that holds for anything says nothing"


class TestBatchSize:
    @pytest.mark.parametrize("device", MOST_ROWS)
    @pytest.mark.parametrize("config", [PUBLISHED, SMALL], ids=["published", "small"])
    def test_it_stays_within_the_share_of_the_memory_that_is_free(self, device, config):
        row = row_bytes(config, 2)
        for rows in (1, 2, 7, 13):
            needed = rows * row / SHARE_OF_FREE
            for free, fitting in ((needed + 9, rows), (needed - 9, max(1, rows - 1))):
                found = batch_size(config, itemsize=2, device=device, free=int(free))
                assert found == fitting

    @pytest.mark.parametrize("device", MOST_ROWS)
    def test_one_row_is_always_tried(self, device):
        assert batch_size(PUBLISHED, itemsize=4, device=device, free=0) == 1

    def test_more_than_pays_is_not_taken(self):
        sizes = {
            device: batch_size(SMALL, itemsize=4, device=device, free=2**50) for device in MOST_ROWS
        }
        assert sizes == MOST_ROWS == {"cpu": 64, "mps": 64, "cuda": 256}

    def test_a_large_model_on_the_cpu_answers_its_first_rows_soon(self):
        assert parameters(PUBLISHED) > LARGE_PARAMETERS
        free = 2**50
        assert batch_size(PUBLISHED, itemsize=2, device="cpu", free=free) == ROWS_OF_LARGE_ON_CPU
        assert batch_size(PUBLISHED, itemsize=2, device="cuda", free=free) == MOST_ROWS["cuda"]


class TestFacts:
    """What `pgcli info` tells of a checkpoint, without loading it."""

    def test_they_are_those_of_the_loaded_model(self, tiny):
        told = facts(Checkpoint("tiny", tiny, "r1"), device="cpu", dtype="bfloat16")
        model = weights.load(tiny, files.config(tiny), dtype=torch.bfloat16)
        assert told["parameters"] == sum(p.numel() for p in model.parameters())
        assert (told["name"], told["path"], told["revision"]) == ("tiny", str(tiny), "r1")
        assert (told["resolution"], told["patch_size"], told["image_tokens"]) == (56, 14, 16)
        assert told["vocabulary"] == model.decoder.embed_tokens.num_embeddings
        assert (told["device"], told["dtype"]) == ("cpu", "bfloat16")
        assert json.loads(json.dumps(told)) == told

    def test_memory_is_the_weights_and_the_rows(self, tiny):
        told = facts(Checkpoint("tiny", tiny), device="cpu", dtype="float32")
        row = row_bytes(files.config(tiny), 4)
        assert told["memory"] == {str(n): told["parameters"] * 4 + n * row for n in (1, 8, 16, 64)}

    def test_files_are_listed_and_folders_are_not(self, tiny, tmp_path):
        folder = Path(shutil.copytree(tiny, tmp_path / "model"))
        (folder / "folder").mkdir()
        (folder / "nowhere").symlink_to("gone")
        told = facts(Checkpoint("model", folder), device="cpu")
        assert list(told["files"]) == sorted(file.name for file in tiny.iterdir())
        assert told["files"]["config.json"] == (tiny / "config.json").stat().st_size
