"""The confidence of boxes: the probability of locations near each corner."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoProcessor, PaliGemmaForConditionalGeneration

from pgcli.checkpoints.find import BUILTIN
from pgcli.cli.main import main
from pgcli.engine.sampler import GREEDY, NEAR, OutputVocabulary, SamplingParams, select_tokens
from pgcli.engine.tokenizer import Tokenizer
from pgcli.parsing import confidence
from pgcli.records import Span
from tests.support.tiny import normal

EXAMPLE = Path(__file__).parents[2] / "examples" / "images" / "stars.jpg"
LOCATIONS = range(40, 40 + 1024)
VOCABULARY = OutputVocabulary(1100, 1080, (1,), LOCATIONS)


def mass_near(probability_V: Tensor, place: int) -> float:
    """The sum of the probabilities of locations at most NEAR from one."""
    near = [value for value in range(1024) if abs(value - place) <= NEAR]
    return sum(float(probability_V[LOCATIONS.start + value]) for value in near)


@pytest.mark.parametrize("place", [0, 1, 15, 16, 17, 500, 1006, 1007, 1008, 1023])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=0.01, top_k=3)])
def test_near_includes_locations_within_16_of_the_token(place, sampling):
    """Among the 1,024 locations of a side, in the model's own distribution."""
    logits_BV = normal(2, 1100, seed=place)
    logits_BV[0, LOCATIONS.start + place] = logits_BV[0].max() + 1
    probability_V = logits_BV[0].clone()
    probability_V[1080] = -torch.inf
    found = select_tokens(logits_BV, sampling, VOCABULARY, torch.tensor([0.5, 0.5]))
    assert found.token_B[0] == LOCATIONS.start + place
    expected = mass_near(probability_V.softmax(-1), place)
    assert math.exp(found.near_logprob_B[0]) == pytest.approx(expected, rel=1e-4)
    assert found.near_logprob_B[0] >= found.logprob_B[0]


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=0.01, top_k=3)])
def test_logprob_leaves_out_padded_rows_and_the_image_token(sampling):
    """These are never answered; with them, as in transformers, it is lower."""
    logits_BV = normal(2, 1200)
    logits_BV[:, [1080, 1150]] = logits_BV.max() + 1  # the image token, and a padded row
    lower_BV = logits_BV.log_softmax(-1)
    answered = [token for token in range(1100) if token != 1080]
    expected_BV = logits_BV[:, answered].log_softmax(-1)
    found = select_tokens(logits_BV.clone(), sampling, VOCABULARY, torch.tensor([0.5, 0.5]))
    for row, token in enumerate(found.token_B.tolist()):
        assert token in answered
        logprob = float(found.logprob_B[row])
        assert logprob == pytest.approx(float(expected_BV[row, answered.index(token)]), abs=1e-5)
        assert logprob > float(lower_BV[row, token]) + 0.01


def test_confidence_is_the_geometric_mean_of_four_corners():
    corners = [Span("location", "", 0, 0.1, near) for near in (0.5, 0.5, 1.0, 0.25)]
    assert confidence(corners) == pytest.approx((0.5 * 0.5 * 0.25) ** 0.25)
    assert confidence([*corners[:3], Span("location", "", 0, 0.1)]) is None
    assert confidence([Span("location", "", 0, 1.0, 1.0000001)] * 4) == 1.0


@pytest.mark.parametrize(
    "words",
    [
        "detect --object star",
        "detect --object star --strict",
        "detect --object star --temperature 0.7 --seed 1",
        "ask --prompt detect{space}star",
    ],
)
def test_rows_have_the_confidence_of_transformers_logits(words, capsys):
    command, *options = (word.replace("{space}", " ") for word in words.split())
    assert main([command, str(EXAMPLE), "--model", "demo", *options]) == 0
    row: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert row["boxes"]
    tokenizer = Tokenizer.from_folder(BUILTIN)
    ids = tokenizer.encode_answer(row["answer"])
    probabilities_LV = reference_probabilities(row["prompt"], ids)
    locations = tokenizer.locations
    nears = [
        float(probability_V[locations.start :][max(0, place - NEAR) : place + NEAR + 1].sum())
        for probability_V, token in zip(probabilities_LV, ids, strict=True)
        if (place := token - locations.start) in range(1024)
    ]
    expected = [math.prod(nears[first : first + 4]) ** 0.25 for first in range(0, len(nears), 4)]
    assert [box["confidence"] for box in row["boxes"]] == pytest.approx(expected, rel=1e-3)
    assert all(0 < box["confidence"] <= 1 for box in row["boxes"])


@torch.inference_mode()
def reference_probabilities(prompt: str, ids: list[int]) -> Tensor:
    """transformers' probabilities (L, V) before each token of an answer, without image tokens."""
    processor = AutoProcessor.from_pretrained(BUILTIN, backend="pil")
    model = PaliGemmaForConditionalGeneration.from_pretrained(BUILTIN, dtype=torch.float32).eval()
    image = Image.open(EXAMPLE).convert("RGB")
    inputs = processor(text=[f"<image>{prompt}"], images=[image], return_tensors="pt")
    inputs.pop("labels", None)
    start = inputs["input_ids"].shape[1]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([ids])], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["token_type_ids"] = (torch.arange(start + len(ids)) >= start).long()[None]
    logits_LV = model(**inputs).logits[0, start - 1 : -1]
    logits_LV[:, model.config.image_token_id] = -torch.inf
    return logits_LV.softmax(-1)
