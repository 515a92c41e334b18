"""The training of the built-in model: what it learns from, and that stopping it loses nothing."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from pgcli.checkpoints import files, weights
from pgcli.checkpoints.save import save
from pgcli.engine.tokens import Vocabulary, left_pad
from pgcli.model.cache import AttentionMasks
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.training.beginning import Schedule, initialise
from pgcli.training.data import Drawings
from pgcli.training.lessons import Lesson, lessons
from pgcli.training.loop import Phase, Run, entirely_right
from pgcli.training.losses import answer_loss
from pgcli.training.patches import under_patches
from pgcli.training.rows import IGNORED, pack, positions, stack, who_sees_whom
from pgcli.training.scenes import BACKGROUNDS, COLOURS, SHAPES, VALIDATION_SEEDS, Scene
from tests.support.tiny import PATCH, RESOLUTION, tokenizer_into

EOS = 1
ACROSS = RESOLUTION // PATCH
LESSONS = [
    Lesson("caption", "caption en", "a red circle on a white background"),
    Lesson("detect", "detect circle", "<loc0001><loc0002><loc0300><loc0400> circle"),
    Lesson("count", "how many circles?", "1"),
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer_into(folder)
    return Vocabulary.from_folder(folder)


@pytest.fixture
def model(vocabulary: Vocabulary) -> PaliGemma:
    vision = VisionConfig(32, 2, 64, 2, PATCH, RESOLUTION)
    decoder = DecoderConfig(32, 2, 64, 2, 1, 16, vocabulary.size)
    model = PaliGemma(PaliGemmaConfig(vision, decoder, image_token=vocabulary.size - 1))
    initialise(model, seed=1)
    return model


def drawings(vocabulary: Vocabulary, lessons_each: int) -> Drawings:
    return Drawings(
        vocabulary=vocabulary,
        eos=EOS,
        seeds=VALIDATION_SEEDS,
        resolution=RESOLUTION,
        patches_across=ACROSS,
        pictures=4,
        lessons_each=lessons_each,
        text_slots=64,
    )


def forward(model: PaliGemma, vocabulary: Vocabulary, asked: list[Lesson], exact: bool) -> Tensor:
    """Logits at every text slot of one row about one picture, in float64."""
    model = model.double()
    generator = torch.Generator().manual_seed(5)
    pixels = torch.rand(1, 3, RESOLUTION, RESOLUTION, generator=generator, dtype=torch.float64)
    patch_BPD = model.encode(pixels)
    row = stack([pack(asked, vocabulary, eos=EOS, slots=64, most=9)[0]], 64)
    patches = patch_BPD.shape[1]
    mask = who_sees_whom(row.lesson_T, row.is_prefix_T, patches=patches, image_sees_prompt=exact)
    place = positions(row.place_T, patches=patches)
    return model.decoder.logits(model(patch_BPD, row.token_T, place, AttentionMasks(mask, mask)))[0]


@torch.no_grad()
def test_a_row_of_one_lesson_is_what_the_engine_computes(
    model: PaliGemma, vocabulary: Vocabulary
) -> None:
    learned = forward(model, vocabulary, LESSONS[:1], exact=True)
    prompt = vocabulary.prompt(LESSONS[0].prefix)
    answer = vocabulary.answer(LESSONS[0].suffix)
    generator = torch.Generator().manual_seed(5)
    pixels = torch.rand(1, 3, RESOLUTION, RESOLUTION, generator=generator, dtype=torch.float64)
    patch_BPD = model.encode(pixels)
    token_BT, _ = left_pad([prompt])
    cache = model.cache(rows=1, slots=patch_BPD.shape[1] + len(prompt) + len(answer))
    logits = [model.prefill(patch_BPD, token_BT, None, cache)]
    logits += [model.step(torch.tensor([token]), cache) for token in answer]
    start = len(prompt) - 1
    together = torch.cat(logits)
    torch.testing.assert_close(learned[start : start + len(together)], together)


def test_lessons_that_share_a_row_do_not_know_of_each_other(
    model: PaliGemma, vocabulary: Vocabulary
) -> None:
    alone = forward(model, vocabulary, LESSONS[2:], exact=False)
    together = forward(model, vocabulary, LESSONS, exact=False)
    prompt, answer = vocabulary.prompt(LESSONS[2].prefix), vocabulary.answer(LESSONS[2].suffix)
    length = len(prompt) + len(answer)
    row, _ = pack(LESSONS, vocabulary, eos=EOS, slots=64, most=9)
    start = row.lesson_T.index(3)
    torch.testing.assert_close(together[start : start + length], alone[:length])


def test_targets_are_the_answers_and_nothing_else(vocabulary: Vocabulary) -> None:
    row, kinds = pack(LESSONS, vocabulary, eos=EOS, slots=64, most=9)
    assert kinds == ("caption", "detect", "count")
    for number, lesson in enumerate(LESSONS, 1):
        targets = [
            target
            for target, at in zip(row.target_T, row.lesson_T, strict=True)
            if at == number and target != IGNORED
        ]
        assert targets == [*vocabulary.answer(lesson.suffix), EOS]


def test_a_row_holds_no_more_lessons_than_fit(vocabulary: Vocabulary) -> None:
    drawn = lessons(Scene.from_seed(10_001), Random(1))
    row, kinds = pack(drawn, vocabulary, eos=EOS, slots=40, most=9)
    assert len(row.token_T) <= 40
    assert 0 < len(kinds) < len(drawn)


def test_patches_know_the_thing_in_their_middle() -> None:
    for seed in VALIDATION_SEEDS[:50]:
        scene = Scene.from_seed(seed)
        under = under_patches(scene, 8)
        assert (under.background_P == list(BACKGROUNDS).index(scene.background)).all()
        for patch in range(64):
            y, x = (patch // 8 + 0.5) / 8, (patch % 8 + 0.5) / 8
            inside = [
                (thing, box)
                for thing, box in zip(scene.things, scene.boxes, strict=True)
                if box.xmin < x < box.xmax and box.ymin < y < box.ymax
            ]
            if not inside:
                assert under.shape_P[patch] == under.colour_P[patch] == 0
                continue
            thing, box = inside[-1]
            assert SHAPES[under.shape_P[patch] - 1] == thing.shape
            assert list(COLOURS)[under.colour_P[patch] - 1] == thing.colour
            sides = (y - box.ymin, x - box.xmin, box.ymax - y, box.xmax - x)
            assert under.side_P4[patch] == pytest.approx(sides, abs=1e-6)


def test_near_a_location_costs_less_than_far_from_it() -> None:
    locations = range(100, 1124)
    logits = torch.zeros(3, 1200)
    logits[0, 500], logits[1, 501], logits[2, 700] = 9.0, 9.0, 9.0
    target, weight = torch.tensor([500]), torch.ones(1)
    exact, near, far = (answer_loss(row[None], target, weight, locations) for row in logits)
    assert exact < near < far


def test_a_word_is_learned_by_plain_cross_entropy() -> None:
    logits, target = torch.randn(5, 1200), torch.tensor([3, 50, 99, 1150, 0])
    loss = answer_loss(logits, target, torch.ones(5), range(100, 1124))
    assert loss.item() == pytest.approx(
        torch.nn.functional.cross_entropy(logits, target).item(), rel=1e-5
    )


def test_the_rate_climbs_stays_and_falls() -> None:
    schedule = Schedule(steps=100, warmup=10, decay=50, rate=1.0)
    rates = [schedule.at(step) for step in range(101)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert set(rates[10:51]) == {1.0}
    assert rates[75] == pytest.approx(0.5)
    assert rates[100] == 0


def run_of(vocabulary: Vocabulary, folder: Path) -> Run:
    vision = VisionConfig(32, 2, 64, 2, PATCH, RESOLUTION)
    decoder = DecoderConfig(32, 2, 64, 2, 1, 16, vocabulary.size)
    model = PaliGemma(PaliGemmaConfig(vision, decoder, image_token=vocabulary.size - 1))
    initialise(model, seed=1)
    phases = [
        Phase("eye", 2, drawings(vocabulary, 0), text=False),
        Phase("shared", 2, drawings(vocabulary, 9)),
        Phase("single", 2, drawings(vocabulary, 1)),
    ]
    return Run(model, phases, Schedule(6, 2, 3, 1e-3), folder)


def test_a_run_stopped_after_every_step_ends_where_an_unbroken_one_does(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    often = {"workers": 0, "save_every": 100, "log_every": 1}
    unbroken = run_of(vocabulary, tmp_path / "unbroken")
    assert unbroken.train(minutes=math.inf, **often)
    for step in range(1, 7):
        broken = run_of(vocabulary, tmp_path / "broken")
        assert broken.train(minutes=0, **often) is (step == 6)
    for name, weight in unbroken.model.state_dict().items():
        torch.testing.assert_close(weight, broken.model.state_dict()[name], rtol=0, atol=0)
    logs = [
        (tmp_path / run / "log.jsonl").read_text().splitlines() for run in ("unbroken", "broken")
    ]
    assert [line.split(', "seconds"')[0] for line in logs[0]] == [
        line.split(', "seconds"')[0] for line in logs[1]
    ]


def test_entirely_right_counts_lessons_without_a_fault(vocabulary: Vocabulary) -> None:
    batch = drawings(vocabulary, 3)[0]
    targets = batch.row.target_T[batch.row.target_T != IGNORED]
    logits = torch.nn.functional.one_hot(targets, vocabulary.size).float()
    assert set(entirely_right(batch, logits).values()) == {1.0}
    first_kind = batch.kinds[0][0]
    logits[0] = 0
    logits[0, 5] = 1
    assert entirely_right(batch, logits)[first_kind] < 1


def test_what_is_saved_loads_again_here_and_in_transformers(
    model: PaliGemma, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    from transformers import PaliGemmaForConditionalGeneration

    save(model, tmp_path, dtype=torch.float32)
    config = files.config(tmp_path)
    assert config == model.config
    again = weights.load(tmp_path, config, dtype=torch.float32)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, rtol=0, atol=0)
    theirs = PaliGemmaForConditionalGeneration.from_pretrained(tmp_path)
    torch.testing.assert_close(
        theirs.model.language_model.embed_tokens.weight, model.decoder.embed_tokens.weight
    )
