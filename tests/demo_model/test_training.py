"""The training of the built-in model: its data, its trainer, and that a resumed run is exact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from examples.demo_model.init import init_weights, whiten_patches
from examples.demo_model.mask_autoencoder import MaskAutoencoder, MaskTask, mask_codes
from examples.demo_model.patch_targets import COLUMNS, patch_targets
from examples.demo_model.phases import Phase
from examples.demo_model.scenes import BACKGROUNDS, COLOURS, SHAPES, VALIDATION_SEEDS, Scene
from examples.demo_model.task import PATCH_HEAD, DemoLearner, DrawingsTask, SceneDataset
from pgcli.checkpoints import mask_decoder, weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import own_mask_decoder
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.training.trainer import Trainer, TrainerOptions
from tests.support.tiny import PATCH, RESOLUTION, tokenizer_into

ROOT = Path(__file__).parents[2]
EOS = 1
PATCHES_PER_SIDE = RESOLUTION // PATCH


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer_into(folder)
    return Tokenizer.from_folder(folder)


@pytest.fixture
def model(vocabulary: Tokenizer) -> PaliGemma:
    vision = VisionConfig(32, 2, 64, 2, PATCH, RESOLUTION)
    decoder = DecoderConfig(32, 2, 64, 2, 1, 16, vocabulary.size)
    model = PaliGemma(PaliGemmaConfig(vision, decoder, image_token_id=vocabulary.size - 1))
    init_weights(model, seed=1)
    return model


CODES = {
    (shape, step): "".join(f"<seg{SHAPES.index(shape):03d}>" for _ in range(16))
    for shape in SHAPES
    for step in range(-48, 49)
}


def scene_dataset(
    vocabulary: Tokenizer, max_examples: int, scene_rates: tuple[int, int, int] = (1, 0, 0)
) -> SceneDataset:
    phase = Phase(4, 1e-3, max_examples=max_examples, scene_rates=scene_rates)
    return SceneDataset(
        phase,
        vocabulary,
        EOS,
        VALIDATION_SEEDS,
        RESOLUTION,
        PATCHES_PER_SIDE,
        batch_size=4,
        codes=CODES,
    )


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


def trainer(vocabulary: Tokenizer, folder: Path) -> Trainer:
    vision = VisionConfig(32, 2, 64, 2, PATCH, RESOLUTION)
    decoder = DecoderConfig(32, 2, 64, 2, 1, 16, vocabulary.size)
    model = PaliGemma(PaliGemmaConfig(vision, decoder, image_token_id=vocabulary.size - 1))
    init_weights(model, seed=1)
    tokenizer_into(folder)
    data = scene_dataset(vocabulary, 9, (1, 1, 0))
    task = DrawingsTask(DemoLearner(model), data, folder)
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


def test_mask_codes_are_decoded_by_the_file_that_is_saved(tmp_path: Path) -> None:
    task = MaskTask(MaskAutoencoder(), 2)
    assert Trainer(task, TrainerOptions(steps=2, learning_rate=1e-3), tmp_path, tmp_path).run()
    codes = mask_codes(tmp_path, 6.0)
    assert len(codes[("star", -48)].split("><")) == 16
    assert codes[("star", -48)] == codes[("star", -40)]  # -12 and -10 degrees, to 6 degrees
    decoder = mask_decoder.load(own_mask_decoder(tmp_path) or tmp_path)
    stored = task.model.masks.codebook.to(torch.bfloat16).to(torch.float64)
    assert torch.equal(decoder.codebook, stored)


def test_the_mean_is_that_of_all_weights(
    model: PaliGemma, vocabulary: Tokenizer, tmp_path: Path
) -> None:
    tokenizer_into(tmp_path / "tokenizer")
    for number, value in enumerate((0.5, 1.0, 3.0)):
        learner = DemoLearner(model)
        with torch.no_grad():
            learner.head.read.bias.fill_(value)
            model.decoder.norm.weight.fill_(-value)
        learner.save(tmp_path / str(number), tmp_path / "tokenizer", torch.bfloat16)
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
