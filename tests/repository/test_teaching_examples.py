"""The examples that teach: each runs, prints what it claims, and has fewer than 150 lines."""

from __future__ import annotations

from time import process_time

import pytest
import torch
from torch.nn import functional as F

from pgcli.model.classifier import ImageClassifier
from pgcli.model.config import ClassifierConfig, VisionConfig
from tests.support.examples import EXAMPLES, load_example

TEACHING = (
    "attention_from_scratch",
    "contrastive_from_scratch",
    "normalisation",
    "vit_from_scratch",
)


@pytest.mark.parametrize("name", TEACHING)
def test_an_example_that_teaches_has_fewer_than_150_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 150


def test_softmax_of_the_known_logits(capsys: pytest.CaptureFixture[str]) -> None:
    script = load_example("contrastive_from_scratch")
    expected = [0.60273194, 0.22173269, 0.13448767, 0.03000826, 0.01103942]
    assert script.softmax(script.LOGITS).tolist() == pytest.approx(expected, abs=1e-7)
    script.show_softmax()
    printed = capsys.readouterr().out
    assert "12.2593" in printed
    assert "exp is inf, the first probability 0.6027" in printed


def test_contrastive_example_agrees_with_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    load_example("contrastive_from_scratch").main()
    lines = capsys.readouterr().out.splitlines()
    good, bad, equal = (
        line.split()
        for line in lines
        if line.startswith(("  good", "  bad", "  eq"))
        if len(line.split()) == 3
    )
    assert float(good[1]) < float(equal[1]) == 1.6094 < float(bad[1])
    assert float(good[2]) < float(equal[2]) < float(bad[2])
    assert len([line for line in lines if "formula and other way differ" in line]) == 3
    assert "  one new value changes 8 probabilities of the softmax, 1 of the sigmoid" in lines


def test_contrastive_example_exits_where_a_formula_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = load_example("contrastive_from_scratch")
    # the mean over pairs, which is a wide-spread convention and not the paper's
    monkeypatch.setattr(script, "siglip_loss", lambda logit_NN: F.softplus(logit_NN).mean())
    with pytest.raises(SystemExit, match="sigmoid"):
        script.main()


def test_only_batch_norm_lets_neighbours_show_through(capsys: pytest.CaptureFixture[str]) -> None:
    script = load_example("normalisation")
    torch.manual_seed(0)
    changes = script.neighbours()
    assert changes["LayerNorm"] == changes["RMSNorm"] == 0
    assert changes["BatchNorm"] > 1
    script.main()
    printed = capsys.readouterr().out
    assert "of each vector [2.0, 3.0, 4.0] [2.0, 4.0, 1.0]" in printed
    assert "RMSNorm    mean  1.000" in printed
    assert "the others 2.0000, the mean 1.0" in printed
    assert "in evaluation it is the identity: True" in printed


def test_relu_has_dead_neurons_and_gelu_has_none() -> None:
    script = load_example("normalisation")
    torch.manual_seed(0)
    assert 0.5 < script.dead_neurons("relu") < 0.9
    assert script.dead_neurons("gelu") == 0


def test_vit_example_trains_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    script = load_example("vit_from_scratch")
    accuracies = script.main(steps=2)
    assert list(accuracies) == list(script.VARIANTS)
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.nightly
def test_vit_example_needs_positions_to_know_what_is_leftmost() -> None:
    started = process_time()
    accuracies = load_example("vit_from_scratch").main()
    assert process_time() - started < 2 * 120  # two minutes of two cores
    assert accuracies["class token, positions"] > 0.85
    assert accuracies["mean, positions"] > 0.85
    assert accuracies["class token, no positions"] < 0.75
    assert accuracies["mean, no positions"] < 0.75


@pytest.mark.parametrize("class_token", [True, False])
def test_vit_of_the_example_is_pgclis_classifier(class_token: bool) -> None:
    """With the same weights, the logits are equal."""
    script = load_example("vit_from_scratch")
    torch.manual_seed(0)
    model = script.VisionTransformer(7, class_token=class_token).eval()
    sizes = (script.WIDTH, script.DEPTH, 4 * script.WIDTH, script.HEADS)
    vision = VisionConfig(
        *sizes, script.PATCH, script.RESOLUTION, activation="gelu", class_token=class_token
    )
    family = "vit" if class_token else "siglip"
    classifier = ImageClassifier(ClassifierConfig(family, vision, tuple("abcdefg"))).eval()
    if class_token:
        torch.nn.init.normal_(model.class_token)
    classifier.load_state_dict(
        {library_name(name): weight for name, weight in model.state_dict().items()}
    )
    pixels_BCRR = torch.randn(2, 3, script.RESOLUTION, script.RESOLUTION)
    with torch.no_grad():
        torch.testing.assert_close(model(pixels_BCRR), classifier(pixels_BCRR))


#: Parts of the example's parameter names, and of those in pgcli/model.
LIBRARY_NAMES = {
    "head.": "classifier.",
    "patches.": "vision.embeddings.patch_embedding.",
    "class_token": "vision.embeddings.class_embedding",
    "positions": "vision.embeddings.position_embedding.weight",
    "blocks.": "vision.layers.",
    "qkv.": "self_attn.qkv_proj.",
    "out.": "self_attn.out_proj.",
    "up.": "mlp.fc1.",
    "down.": "mlp.fc2.",
    ".norm1": ".layer_norm1",
    ".norm2": ".layer_norm2",
}


def library_name(name: str) -> str:
    """The name in pgcli/model of a parameter of the example."""
    if name.startswith("norm."):
        return "vision.post_layernorm." + name.removeprefix("norm.")
    for own, others in LIBRARY_NAMES.items():
        name = name.replace(own, others)
    return name
