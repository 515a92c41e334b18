"""The training of the built-in model: its data, its task, and that a resumed run is exact."""

import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from examples.demo_model.model import PATCH_HEAD, DemoLearner, new_model
from examples.demo_model.questions import mask_codes
from examples.demo_model.scenes import (
    VALIDATION_SEEDS,
    Scene,
)
from examples.demo_model.task import (
    Drawings,
    DrawingsTask,
    PackedRow,
    Phase,
    TokenizedExample,
    pack,
    packed_mask,
    packed_positions,
)
from pgcli.checkpoints import mask_decoder, weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import BUILTIN, own_mask_decoder
from pgcli.engine.tokenizer import Tokenizer, left_pad
from pgcli.model.attention import AttentionMasks
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.training.trainer import Trainer, TrainerOptions
from tests.support.tiny import PATCH, RESOLUTION, randomised

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    return Tokenizer.from_folder(BUILTIN)


def learner(vocabulary: Tokenizer) -> DemoLearner:
    vision = VisionConfig(32, 2, 64, 2, PATCH, RESOLUTION)
    decoder = DecoderConfig(32, 2, 64, 2, 1, 16, vocabulary.size)
    config = PaliGemmaConfig(vision, decoder, image_token_id=vocabulary.size - 1)
    generator = torch.Generator().manual_seed(5)
    pixels_BCRR = torch.rand(8, 3, RESOLUTION, RESOLUTION, generator=generator)
    return DemoLearner(new_model(config, pixels_BCRR, seed=1))


def test_codes_of_masks_are_decoded_to_the_shapes():
    """By the shipped decoder, for each shape that is trained on."""
    file = own_mask_decoder(BUILTIN)
    assert file is not None
    decoder = mask_decoder.load_mask_decoder(file)
    for scene in map(Scene.from_seed, VALIDATION_SEEDS[:20]):
        for drawn in scene.objects:
            mask_RR = decoder(torch.tensor([mask_codes(drawn)]))[0] > 0
            both, either = mask_RR & shape_mask(drawn.outline), mask_RR | shape_mask(drawn.outline)
            assert both.sum() / either.sum() > 0.85, drawn


def shape_mask(outline: tuple[tuple[float, float], ...]) -> Tensor:
    """The shape in its bounding box."""
    corners = numpy.array(outline)
    low, high = corners.min(0), corners.max(0)
    canvas = Image.new("1", (64, 64))
    points = ((corners - low) / (high - low) * 63).ravel().tolist()
    ImageDraw.Draw(canvas).polygon(points, fill=1)
    return torch.from_numpy(numpy.array(canvas))


def trainer(vocabulary: Tokenizer, folder: Path) -> Trainer:
    phase = Phase(4, 1e-3, max_examples=9, batch_size=4, scene_rates=(1, 1, 1))
    data = Drawings(phase, vocabulary, RESOLUTION, RESOLUTION // PATCH)
    task = DrawingsTask(learner(vocabulary), data)
    folder.mkdir(exist_ok=True)
    return Trainer(task, TrainerOptions(steps=4, learning_rate=1e-3, warmup=2), folder, folder)


def test_a_run_resumed_at_every_step_writes_the_same_bytes(vocabulary, tmp_path):
    assert trainer(vocabulary, tmp_path / "unbroken").run()
    for step in range(1, 5):
        resumed = trainer(vocabulary, tmp_path / "resumed")
        assert resumed.run(should_stop=lambda: True) is (step == 4)
    for file in ("model.safetensors", PATCH_HEAD):
        one, other = (tmp_path / run / file for run in ("unbroken", "resumed"))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.nightly
def test_the_command_makes_a_checkpoint_by_all_phases(tmp_path):
    command = [sys.executable, "-m", "examples.demo_model", str(tmp_path)]
    command += ["--steps", "1", "--batch-size", "2"]
    for _ in range(2):  # the second has nothing left to do
        subprocess.run(command, cwd=ROOT, timeout=600, check=True)
    model = weights.load_paligemma(
        tmp_path / "demo", read_config(tmp_path / "demo"), dtype=torch.bfloat16
    )
    assert all(weight.isfinite().all() for weight in model.state_dict().values())


# --- words, the optimizer, and rows of several examples


EXAMPLES: list[TokenizedExample] = [
    ([2, 50, 51, 108], [60, 61, 62, 63, 1], 1),
    ([2, 52, 108], [70, 71, 1], 4),
    ([2, 53, 54, 55, 108], [80, 1], 4),
]


@pytest.fixture
def model() -> PaliGemma:
    vision = VisionConfig(32, 2, 64, 2, PATCH, RESOLUTION)
    decoder = DecoderConfig(32, 2, 64, 2, 1, 16, 256)
    return randomised(PaliGemma(PaliGemmaConfig(vision, decoder, image_token_id=255)))


def image_features(model: PaliGemma) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    pixels = torch.rand(1, 3, RESOLUTION, RESOLUTION, generator=generator, dtype=torch.float64)
    return model.encode(pixels)


def forward(model: PaliGemma, examples: list[TokenizedExample], *, is_single: bool) -> Tensor:
    """Logits at every text slot of one packed row, in float64."""
    patch_BPD = image_features(model)
    row = PackedRow.of([pack(examples, 9)])
    patches = patch_BPD.shape[1]
    mask = packed_mask(row, patches=patches, image_attends_to_prompt=is_single)
    positions = packed_positions(row, patches=patches)
    hidden_BTD = model(patch_BPD, row.token_BT, positions, AttentionMasks(mask, mask))
    return model.decoder.logits(hidden_BTD)[0]


@torch.no_grad()
def test_a_row_of_one_example_has_the_engines_logits(model):
    prompt, answer, _ = EXAMPLES[0]
    packed = forward(model, EXAMPLES[:1], is_single=True)
    patch_BPD = image_features(model)
    token_BT, _ = left_pad([prompt])
    cache = model.kv_cache(1)
    logits = [model.prefill(patch_BPD, token_BT, None, cache)]
    logits += [model.decode_step(torch.tensor([token]), cache) for token in answer[:-1]]
    start = len(prompt) - 1
    engine = torch.cat(logits)
    torch.testing.assert_close(packed[start : start + len(engine)], engine)


@torch.no_grad()
def test_examples_of_a_row_do_not_affect_each_other(model):
    alone = forward(model, EXAMPLES[2:], is_single=False)
    together = forward(model, EXAMPLES, is_single=False)
    length = len(EXAMPLES[2][0]) + len(EXAMPLES[2][1]) - 1
    row = PackedRow.of([pack(EXAMPLES, 9)])
    start = row.example_BT[0].tolist().index(3)
    torch.testing.assert_close(together[start : start + length], alone[:length])
