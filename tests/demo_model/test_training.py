"""The training of the built-in model: its data, its trainer, and that a resumed run is exact."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples.demo_model.dataset import SceneDataset
from examples.demo_model.init import init_weights
from examples.demo_model.optimizer import Schedule
from examples.demo_model.patch_targets import patch_targets
from examples.demo_model.scenes import BACKGROUNDS, COLOURS, SHAPES, VALIDATION_SEEDS, Scene
from examples.demo_model.trainer import Phase, Trainer, exact_match_by_kind
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.save import save
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.training.packing import IGNORE_INDEX
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


def scene_dataset(vocabulary: Tokenizer, max_examples: int) -> SceneDataset:
    return SceneDataset(
        vocabulary=vocabulary,
        eos=EOS,
        seeds=VALIDATION_SEEDS,
        resolution=RESOLUTION,
        patches_per_side=PATCHES_PER_SIDE,
        batch_size=4,
        max_examples=max_examples,
        text_slots=64,
    )


def test_a_batch_follows_from_its_index(vocabulary: Tokenizer) -> None:
    one, same, other = (scene_dataset(vocabulary, 9)[index] for index in (3, 3, 4))
    assert torch.equal(one.pixels_BRRC, same.pixels_BRRC)
    assert all(torch.equal(a, b) for a, b in zip(one.row, same.row, strict=True))
    assert one.kinds == same.kinds
    assert not torch.equal(one.pixels_BRRC, other.pixels_BRRC)


def test_shared_rows_start_with_a_caption_and_a_detection(vocabulary: Tokenizer) -> None:
    for kinds in scene_dataset(vocabulary, 9)[0].kinds:
        assert kinds[:2] == ("caption", "detect")
    assert {len(kinds) for kinds in scene_dataset(vocabulary, 1)[0].kinds} == {1}


def test_short_answers_weigh_more_than_words_of_captions(vocabulary: Tokenizer) -> None:
    batch = scene_dataset(vocabulary, 9)[0]
    for row, kinds in enumerate(batch.kinds):
        for number, kind in enumerate(kinds, 1):
            mine = (batch.row.example_T[row] == number) & (batch.row.target_T[row] != IGNORE_INDEX)
            first, *later = batch.row.weight_T[row][mine].tolist()
            assert first == (1.0 if kind in ("caption", "detect") else 4.0)
            assert set(later) <= {1.0}


def test_patch_targets_describe_the_object_at_the_centre() -> None:
    for seed in VALIDATION_SEEDS[:50]:
        scene = Scene.from_seed(seed)
        targets = patch_targets(scene, 8)
        assert (targets.background_P == list(BACKGROUNDS).index(scene.background)).all()
        for patch in range(64):
            y, x = (patch // 8 + 0.5) / 8, (patch % 8 + 0.5) / 8
            inside = [
                (drawn, box)
                for drawn, box in zip(scene.objects, scene.boxes, strict=True)
                if box.xmin < x < box.xmax and box.ymin < y < box.ymax
            ]
            if not inside:
                assert targets.shape_P[patch] == targets.colour_P[patch] == 0
                continue
            drawn, box = inside[-1]
            assert SHAPES[targets.shape_P[patch] - 1] == drawn.shape
            assert list(COLOURS)[targets.colour_P[patch] - 1] == drawn.colour
            sides = (y - box.ymin, x - box.xmin, box.ymax - y, box.xmax - x)
            assert targets.side_P4[patch] == pytest.approx(sides, abs=1e-6)


def test_the_learning_rate_rises_stays_and_falls() -> None:
    schedule = Schedule(steps=100, warmup=10, decay=50, rate=1.0)
    rates = [schedule.at(step) for step in range(101)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert set(rates[10:51]) == {1.0}
    assert rates[75] == pytest.approx(0.5)
    assert rates[100] == 0


def trainer(vocabulary: Tokenizer, folder: Path) -> Trainer:
    vision = VisionConfig(32, 2, 64, 2, PATCH, RESOLUTION)
    decoder = DecoderConfig(32, 2, 64, 2, 1, 16, vocabulary.size)
    model = PaliGemma(PaliGemmaConfig(vision, decoder, image_token_id=vocabulary.size - 1))
    init_weights(model, seed=1)
    phases = [
        Phase("vision", 2, scene_dataset(vocabulary, 0), has_text=False),
        Phase("packed", 2, scene_dataset(vocabulary, 9)),
        Phase("single", 2, scene_dataset(vocabulary, 1)),
    ]
    return Trainer(model, phases, Schedule(6, 2, 3, 1e-3), folder)


def test_a_run_resumed_at_every_step_has_the_same_weights(
    vocabulary: Tokenizer, tmp_path: Path
) -> None:
    options = {"workers": 0, "save_every": 100, "log_every": 1}
    unbroken = trainer(vocabulary, tmp_path / "unbroken")
    assert unbroken.train(minutes=math.inf, **options)
    for step in range(1, 7):
        resumed = trainer(vocabulary, tmp_path / "resumed")
        assert resumed.train(minutes=0, **options) is (step == 6)
    for name, weight in unbroken.model.state_dict().items():
        torch.testing.assert_close(weight, resumed.model.state_dict()[name], rtol=0, atol=0)
    logs = [
        (tmp_path / run / "log.jsonl").read_text().splitlines() for run in ("unbroken", "resumed")
    ]
    assert [line.split(', "seconds"')[0] for line in logs[0]] == [
        line.split(', "seconds"')[0] for line in logs[1]
    ]


@pytest.mark.slow
def test_the_command_trains_resumes_and_saves_a_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.demo_model", "--out", str(tmp_path)]
    command += ["--vision-steps", "1", "--packed-steps", "1", "--single-steps", "1"]
    command += ["--batch-size", "2", "--workers", "0", "--device", "cpu"]
    for step in (1, 2, 3):
        run = subprocess.run(
            [*command, "--minutes", "0"], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        complete = step == 3
        assert run.returncode == (0 if complete else 1), run.stderr
        assert complete or f"is at step {step} of 3; rerun the command to resume" in run.stderr
    logged = (tmp_path / "log.jsonl").read_text().splitlines()
    assert len(logged) == 1  # every 50th step is logged
    config = read_config(tmp_path)
    model = weights.load(tmp_path, config, dtype=torch.float32)
    assert all(weight.isfinite().all() for weight in model.state_dict().values())


def test_exact_match_counts_examples_with_every_token_right(vocabulary: Tokenizer) -> None:
    batch = scene_dataset(vocabulary, 3)[0]
    targets = batch.row.target_T[batch.row.target_T != IGNORE_INDEX]
    logits = torch.nn.functional.one_hot(targets, vocabulary.size).float()
    assert set(exact_match_by_kind(batch, logits).values()) == {1.0}
    first_kind = batch.kinds[0][0]
    logits[0] = 0
    logits[0, 5] = 1
    assert exact_match_by_kind(batch, logits)[first_kind] < 1


def test_saved_models_load_here_and_in_transformers(
    model: PaliGemma, vocabulary: Tokenizer, tmp_path: Path
) -> None:
    from transformers import PaliGemmaForConditionalGeneration

    save(model, tmp_path, dtype=torch.float32)
    config = read_config(tmp_path)
    assert config == model.config
    again = weights.load(tmp_path, config, dtype=torch.float32)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, rtol=0, atol=0)
    reference = PaliGemmaForConditionalGeneration.from_pretrained(tmp_path)
    torch.testing.assert_close(
        reference.model.language_model.embed_tokens.weight, model.decoder.embed_tokens.weight
    )
