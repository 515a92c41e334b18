"""Tests `pgcli verify`: equal outputs are the same, and a difference is found in its stage."""

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
import torch

from pgcli.checkpoints import weights
from pgcli.checkpoints.find import Checkpoint
from pgcli.cli.main import main
from pgcli.errors import NoInputError, NoUsableDevice, UsageError
from pgcli.model.paligemma import PaliGemma
from pgcli.records import Item
from pgcli.verify import cases, compare, reference, verify
from pgcli.verify.cases import (
    FEATURES,
    LOGITS,
    PROMPTS,
    Outputs,
    PaliGemmaCase,
)
from pgcli.verify.reference import SIZES, default_images, readable_images
from pgcli.verify.verify import prove

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "images"


def proof_of(folder, *, dtype="auto", items=None):
    return prove(
        Checkpoint("tiny", folder),
        default_images() if items is None else items,
        device="cpu",
        dtype=dtype,
        waiting=lambda message: nullcontext(),
    )


@pytest.fixture
def change_weight(monkeypatch):
    """Returns a function that changes a weight in pgcli's model, but not in transformers'."""

    def change_weight(name, factor):
        def load(*arguments, finish, **options):
            def change(model, part):
                owner = model.get_submodule(name.rsplit(".", 2)[0]) if "layers" in name else model
                if part is owner:
                    parameter = model.get_parameter(name)
                    parameter.copy_(parameter * factor + (factor - 1))
                finish(model, part)

            return whole(*arguments, finish=change, **options)

        whole = weights.load_paligemma
        monkeypatch.setattr(weights, "load_paligemma", load)

    return change_weight


class TestSame:
    @pytest.mark.parametrize("generation", [pytest.param(1, marks=pytest.mark.slow), 2])
    def test_unchanged_model_is_the_same_in_both_dtypes(self, tiny, tiny2, generation):
        proof = proof_of(tiny if generation == 1 else tiny2)
        assert proof.same, proof.verdict
        assert proof.verdict.startswith("same: vision features, prefill logits and ")
        assert proof.texts.same is True
        assert proof.levels.largest < 1
        assert (proof.rows, proof.images) == (len(PROMPTS), len(SIZES))
        exact, rounded = proof.comparisons
        assert (exact.dtype, rounded.dtype) == ("float32", "bfloat16")
        vision, logits, tokens = exact.stages
        assert 0 < vision.largest < vision.largest_bound < 1e-3
        assert 0 < logits.mean < logits.largest < 1e-4
        assert tokens.tokens > 2 * len(PROMPTS)
        vision, _, tokens = rounded.stages
        assert vision.floor.largest > vision.largest
        assert tokens.divergence_floor is not None
        printed = json.loads(json.dumps(asdict(proof)))
        assert printed["comparisons"][0]["stages"][1]["same"] is True

    @pytest.mark.slow
    def test_float16_is_compared_with_float32_on_any_device(self, tiny, tiny2):
        proof = proof_of(tiny, dtype="float16")
        assert proof.same, proof.verdict
        assert proof.verdict.endswith("in float32 (pgcli in float16)")
        (vision, logits, _) = proof.comparisons[0].stages
        assert 0 < vision.largest < vision.floor.largest / 2, "less than bfloat16's noise"
        assert 0 < logits.largest < logits.floor.largest / 2
        with pytest.raises(UsageError, match="PaliGemma 2"):
            proof_of(tiny2, dtype="float16")

    @pytest.mark.slow
    def test_up_to_eight_images_of_the_user_are_compared(self, tiny):
        files = sorted(EXAMPLES.glob("*.png"))
        items = [Item(n, f.name, f.name, path=str(f)) for n, f in enumerate(files * 5)]
        broken = Item(99, "broken", "broken", data=b"not an image")
        proof = proof_of(tiny, dtype="float32", items=[broken, *items])
        assert (proof.images, proof.rows) == (7, 7)
        with pytest.raises(NoInputError, match="no image to compare with"):
            proof_of(tiny, items=[broken])


class TestDifferent:
    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
    @pytest.mark.parametrize(
        ("name", "stage"),
        [
            ("vision.post_layernorm.weight", "vision features"),
            ("vision.layers.0.layer_norm1.weight", "vision features"),
            ("projector.bias", "vision features"),
            ("decoder.layers.1.input_layernorm.weight", "prefill logits"),
            ("decoder.norm.weight", "prefill logits"),
        ],
    )
    def test_a_changed_norm_is_found_in_its_stage(self, tiny, change_weight, dtype, name, stage):
        change_weight(name, 1.5 if dtype == "bfloat16" else 1.01)
        proof = proof_of(tiny, dtype=dtype)
        assert not proof.same
        assert proof.verdict == f"different: {stage} differ in {dtype}"
        compared = proof.comparisons[0].stages["vision" not in stage]
        assert len(compared.first) == (3 if "vision" in stage else 2)

    @pytest.mark.slow
    def test_unmasked_padding_is_found_in_the_logits(self, tiny, monkeypatch):
        padded = cases.left_pad
        monkeypatch.setattr(cases, "left_pad", lambda prompts: (padded(prompts)[0], None))
        proof = proof_of(tiny, dtype="float32")
        assert proof.comparisons[0].first_difference == "prefill logits"
        assert proof.comparisons[0].stages[0].same

    @pytest.mark.slow
    def test_wrong_decode_step_is_found_in_the_tokens(self, tiny, monkeypatch):
        step = PaliGemma.step_logits
        monkeypatch.setattr(PaliGemma, "step_logits", lambda *given: -step(*given))
        proof = proof_of(tiny, dtype="float32")
        assert proof.verdict == "different: generated tokens differ in float32"
        assert [p.step for p in proof.comparisons[0].stages[2].divergences] == [1] * len(PROMPTS)

    @pytest.mark.slow
    def test_different_prompt_ids_are_reported_first(self, tiny, monkeypatch):
        other = reference.prompt_ids
        monkeypatch.setattr(
            reference, "prompt_ids", lambda *given: [ids[:-1] for ids in other(*given)]
        )
        proof = proof_of(tiny, dtype="float32")
        assert "'caption en' has different tokens" in proof.verdict

    @pytest.mark.slow
    def test_unreadable_tokenizer_leaves_prompts_uncompared(self, tiny, monkeypatch):
        def fail(*_):
            raise OSError("no tokenizer here\nand more")

        monkeypatch.setattr(reference, "prompt_ids", fail)
        proof = proof_of(tiny, dtype="float32")
        assert (proof.texts.same, proof.texts.reason) == (None, "no tokenizer here")
        assert proof.same


def outputs(tokens, steps=None):
    return Outputs({}, tuple(tokens), steps)


class TestTokens:
    #: the logits of four tokens before each of two steps; the last is the image's
    STEPS = torch.tensor([[0.0, 1.0, 2.0, 9.0], [3.0, 3.0 - 5e-5, 2.9, 9.0]])

    @pytest.mark.parametrize(
        ("mine", "same", "agreeing"),
        [
            ((2, 0), True, 2),
            ((2, 1), True, 1),  # a tie
            ((2, 2), False, 1),  # 0.1 below the best
            ((1, 0), False, 0),
            ((2,), False, 1),
            ((2, 0, 0), False, 2),
        ],
    )
    def test_rows_may_diverge_at_ties_only(self, mine, same, agreeing):
        reported = compare.compare_tokens(
            outputs([mine]), outputs([(2, 0)], (self.STEPS,)), None, image_token=3, exact=True
        )
        assert (reported.same, reported.agreeing) == (same, agreeing)
        json.dumps(asdict(reported), allow_nan=False)

    def test_bfloat16_noise_defines_the_tie_bound(self):
        there = outputs([(2, 0)], (self.STEPS,))
        for noise, same in ((0.1, True), (0.01, False)):
            eager = outputs([(2, 0)], (self.STEPS + noise,))
            reported = compare.compare_tokens(
                outputs([(2, 2)]), there, eager, image_token=3, exact=False
            )
            assert reported.same is same


class TestNumbers:
    def test_nan_and_infinity_are_different_and_serializable(self):
        there = torch.tensor([[1.0, 2.0]])
        for value in (float("nan"), float("inf")):
            reported = compare.compare_tensors(
                "x", torch.tensor([[1.0, value]]), there, None, exact=True
            )
            assert not reported.same
            assert reported.first == (0, 1)
            json.dumps(asdict(reported), allow_nan=False)

    def test_the_bound_grows_with_the_values(self):
        for scale, difference, same in ((1, 2e-4, False), (1, 9e-5, True), (50, 4e-3, True)):
            there = torch.tensor([[0.1, 1.0]]) * scale
            reported = compare.compare_tensors("x", there + difference, there, None, exact=True)
            assert reported.same is same

    def test_one_large_difference_exceeds_any_noise(self):
        there = torch.ones(4, 1000)
        mine = there.clone()
        mine[2, 500] += 0.1
        reported = compare.compare_tensors("x", mine, there, there + 0.01, exact=False)
        assert (reported.same, reported.first) == (False, (2, 500))
        assert compare.compare_tensors("x", there + 0.015, there, there + 0.01, exact=False).same


class TestMemory:
    @pytest.mark.slow
    def test_dtype_that_does_not_fit_is_skipped_and_reported(self, tiny, monkeypatch):
        monkeypatch.setattr(PaliGemmaCase, "needed_memory", lambda case, itemsize: itemsize)
        monkeypatch.setattr(verify, "free_bytes", lambda device: 2)
        proof = proof_of(tiny)
        assert [run.dtype for run in proof.comparisons] == ["bfloat16"]
        assert proof.skipped[0].startswith("float32: needs")
        with pytest.raises(NoUsableDevice, match="too little memory"):
            proof_of(tiny, dtype="float32")

    def test_missing_transformers_is_an_error_with_a_hint(self, tiny, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(UsageError, match="transformers") as refused:
            proof_of(tiny)
        assert "pip install" in refused.value.hint


class TestCommand:
    @pytest.mark.slow
    def test_difference_exits_with_5_and_names_the_stage(self, tiny, change_weight, capsys):
        change_weight("decoder.norm.weight", 1.5)
        code = main(["verify", str(tiny), "--dtype", "float32", "--source", str(EXAMPLES)])
        out, err = capsys.readouterr()
        assert code == 5
        assert out.splitlines()[-1] == "verdict\tdifferent: prefill logits differ in float32"
        assert "first at row 0, token " in out
        assert err.startswith("pgcli: different: prefill logits differ in float32\nhint: ")


@pytest.mark.slow
def test_eager_only_models_have_the_noise_of_one_rounding_step(tiny2):
    """transformers runs Gemma 2 only eagerly; the noise comes from the vision tower."""
    case = PaliGemmaCase(tiny2, torch.device("cpu"), partial(readable_images, default_images()))
    assert len(set(map(len, case.inputs.ids))) == len(PROMPTS)  # one batch has several lengths
    model = case.load(torch.bfloat16)
    first, other = case.expected(model), case.eager(model)
    again = case.expected(model)  # the model is unchanged
    assert torch.equal(again.tensors[FEATURES], other.tensors[FEATURES])
    noise = (first.tensors[LOGITS] - other.tensors[LOGITS]).abs().mean()
    assert 0 < noise < 0.1 * first.tensors[LOGITS].std()
