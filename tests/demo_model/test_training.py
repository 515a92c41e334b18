"""The training of the built-in model: its data, its task, and that a resumed run is exact."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from examples.demo_model.__main__ import PHASES
from examples.demo_model.model import (
    COLUMNS,
    PATCH_HEAD,
    DemoLearner,
    new_model,
    patch_targets,
    whiten_patches,
)
from examples.demo_model.questions import mask_codes
from examples.demo_model.scenes import BACKGROUNDS, COLOURS, SHAPES, VALIDATION_SEEDS, Scene
from examples.demo_model.task import Drawings, DrawingsTask, Phase
from pgcli.checkpoints import mask_decoder, weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import BUILTIN, own_mask_decoder
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.training.trainer import Trainer, TrainerOptions
from tests.support.tiny import PATCH, RESOLUTION

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


def test_patch_targets_describe_the_object_at_the_centre() -> None:
    for seed in VALIDATION_SEEDS[:50]:
        scene = Scene.from_seed(seed)
        shape, colour, background, side, *_ = patch_targets(scene, 8).split(COLUMNS, 1)
        assert (background == list(BACKGROUNDS).index(scene.background)).all()
        for patch in range(64):
            y, x = (patch // 8 + 0.5) / 8, (patch % 8 + 0.5) / 8
            inside = [
                (drawn, box)
                for drawn, box in zip(scene.objects, scene.boxes, strict=True)
                if box.xmin < x < box.xmax and box.ymin < y < box.ymax
            ]
            if not inside:
                assert shape[patch] == colour[patch] == 0
                continue
            drawn, box = inside[-1]
            assert SHAPES[int(shape[patch]) - 1] == drawn.shape
            assert list(COLOURS)[int(colour[patch]) - 1] == drawn.colour
            sides = (y - box.ymin, x - box.xmin, box.ymax - y, box.xmax - x)
            assert side[patch].tolist() == pytest.approx(sides, abs=1e-6)


def test_a_new_embedding_whitens_patches() -> None:
    torch.manual_seed(0)
    embedding = nn.Conv2d(3, 8, kernel_size=4, stride=4)
    scale = torch.arange(1.0, 4.0)[:, None, None]
    images_BCRR = torch.rand(64, 3, 16, 16).cumsum(-1) * scale
    whiten_patches(embedding, images_BCRR)
    found_ND = embedding(images_BCRR).detach().movedim(1, -1).flatten(0, 2)
    assert found_ND.mean(0).abs().max() < 1e-4
    covariance_DD = found_ND.T.cov()
    assert (covariance_DD - covariance_DD.diag().diag()).abs().max() < 1e-3
    variance_D = covariance_DD.diag()
    assert variance_D[0].item() == pytest.approx(1 / 1.1, rel=2e-2)  # of the least component
    assert (variance_D.diff() > 0).all()
    assert variance_D[-1] < 1.001


def test_codes_of_masks_are_decoded_to_the_shapes() -> None:
    """By the shipped decoder, for each shape that is trained on."""
    file = own_mask_decoder(BUILTIN)
    assert file is not None
    decoder = mask_decoder.load(file)
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


def test_a_run_resumed_at_every_step_writes_the_same_bytes(
    vocabulary: Tokenizer, tmp_path: Path
) -> None:
    assert trainer(vocabulary, tmp_path / "unbroken").run()
    for step in range(1, 5):
        resumed = trainer(vocabulary, tmp_path / "resumed")
        assert resumed.run(should_stop=lambda: True) is (step == 4)
    for file in ("model.safetensors", PATCH_HEAD):
        one, other = (tmp_path / run / file for run in ("unbroken", "resumed"))
        assert one.read_bytes() == other.read_bytes()


def test_no_two_phases_train_on_the_same_drawings() -> None:
    drawings = [
        range(phase.first_drawing, phase.first_drawing + count)
        for phase in PHASES.values()
        # of two processes
        if (count := 2 * phase.steps * phase.batch_size * phase.scene_choices)
    ]
    assert len(drawings) == 7
    assert all(a.stop <= b.start for a, b in pairwise(drawings))


def test_the_mean_is_that_of_all_weights(vocabulary: Tokenizer, tmp_path: Path) -> None:
    for number, value in enumerate((0.5, 1.0, 3.0)):
        model = learner(vocabulary)
        with torch.no_grad():
            model.head.read.bias.fill_(value)
            model.paligemma.decoder.norm.weight.fill_(-value)
        model.save(tmp_path / str(number), torch.bfloat16)
    mean = DemoLearner.load(*(tmp_path / str(number) for number in range(3)))
    assert mean.head.read.bias.unique().tolist() == [1.5]
    assert mean.paligemma.decoder.norm.weight.unique().tolist() == [-1.5]
    assert Tokenizer.from_folder(tmp_path / "2").size == vocabulary.size


@pytest.mark.nightly
def test_the_command_makes_a_checkpoint_by_all_phases(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.demo_model", str(tmp_path)]
    command += ["--steps", "1", "--batch-size", "2"]
    for _ in range(2):  # the second has nothing left to do
        subprocess.run(command, cwd=ROOT, timeout=600, check=True)
    model = weights.load(tmp_path / "demo", read_config(tmp_path / "demo"), dtype=torch.bfloat16)
    assert all(weight.isfinite().all() for weight in model.state_dict().values())
