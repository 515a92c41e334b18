"""`pgcli verify`: it says same where two programs are, and names the stage where they are not."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.cli.app import main
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import NoInputError, NoUsableDevice, UsageError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.model.paligemma import PaliGemma
from pgcli.proof import compare, dtypes, engine_outputs, prove, reference
from pgcli.proof.generated_images import SIZES, default_images
from pgcli.proof.inputs import PROMPTS, StageOutputs, make_inputs
from pgcli.proof.reference_outputs import eager_outputs, reference_outputs
from pgcli.records import Item

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "images"


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """A random checkpoint of the second generation."""
    from tests.support.tiny import checkpoint_into

    return checkpoint_into(tmp_path_factory.mktemp("second"), generation=2)


def proof_of(folder, *, dtype="auto", items=None):
    return prove(
        Checkpoint("tiny", folder),
        default_images() if items is None else items,
        device="cpu",
        dtype=dtype,
        waiting=lambda message: nullcontext(),
    )


@pytest.fixture
def damage(monkeypatch):
    """Loads this code's model, and not transformers', with something done to it."""

    def damage(change):
        def load(*arguments, **options):
            model = whole(*arguments, **options)
            change(model)
            return model

        whole = weights.load
        monkeypatch.setattr(weights, "load", load)

    return damage


class TestSame:
    @pytest.mark.parametrize("generation", [1, 2])
    def test_right_code_is_the_same_in_both_dtypes(self, tiny, second, generation):
        proof = proof_of(tiny if generation == 1 else second)
        assert proof.same, proof.verdict
        assert proof.verdict.startswith("same: vision features, prefill logits and ")
        assert proof.prompts.same is True
        assert proof.levels.largest < 1
        assert (proof.rows, proof.pictures) == (len(PROMPTS), len(SIZES))
        exact, rounded = proof.comparisons
        assert (exact.dtype, rounded.dtype) == ("float32", "bfloat16")
        assert 0 < exact.vision.largest < exact.vision.largest_bound < 1e-3
        assert 0 < exact.logits.mean < exact.logits.largest < 1e-4
        assert exact.tokens.tokens > 2 * len(PROMPTS)
        assert rounded.vision.floor.largest > rounded.vision.largest
        assert rounded.tokens.floor_partings is not None
        assert json.loads(json.dumps(asdict(proof)))["comparisons"][0]["logits"]["same"] is True

    def test_prompts_of_several_lengths_share_a_batch(self, tiny, monkeypatch):
        lengths = []

        def left_pad(prompts):
            lengths.extend(map(len, prompts))
            return padded(prompts)

        padded = engine_outputs.left_pad
        monkeypatch.setattr(engine_outputs, "left_pad", left_pad)
        proof_of(tiny, dtype="float32")
        assert len(set(lengths)) == len(PROMPTS)

    def test_the_user_s_images_are_looked_at_up_to_eight(self, tiny):
        files = sorted(EXAMPLES.glob("*.png"))
        items = [Item(n, f.name, f.name, path=str(f)) for n, f in enumerate(files * 5)]
        broken = Item(99, "broken", "broken", data=b"no picture")
        proof = proof_of(tiny, dtype="float32", items=[broken, *items])
        assert (proof.pictures, proof.rows) == (7, 7)
        with pytest.raises(NoInputError, match="no image to compare with"):
            proof_of(tiny, items=[broken])


def change_weight(name, factor):
    def change(model):
        parameter = dict(model.named_parameters())[name]
        parameter.copy_(parameter * factor + (factor - 1))

    return change


class TestDifferent:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
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
    def test_a_changed_norm_is_found_in_its_stage(self, tiny, damage, dtype, name, stage):
        damage(change_weight(name, 1.5 if dtype == "bfloat16" else 1.01))
        proof = proof_of(tiny, dtype=dtype)
        assert not proof.same
        assert proof.verdict == f"different: {stage} differ in {dtype}"
        parted = getattr(proof.comparisons[0], "vision" if "vision" in stage else "logits")
        assert len(parted.first) == (3 if "vision" in stage else 2)

    def test_padding_that_counts_is_found_in_the_logits(self, tiny, monkeypatch):
        padded = engine_outputs.left_pad
        monkeypatch.setattr(engine_outputs, "left_pad", lambda prompts: (padded(prompts)[0], None))
        proof = proof_of(tiny, dtype="float32")
        assert proof.comparisons[0].first_difference == "prefill logits"
        assert proof.comparisons[0].vision.same

    def test_a_fault_in_later_steps_is_found_in_the_tokens(self, tiny, monkeypatch):
        step = PaliGemma.decode_step
        monkeypatch.setattr(PaliGemma, "decode_step", lambda *given: -step(*given))
        proof = proof_of(tiny, dtype="float32")
        assert proof.verdict == "different: generated tokens differ in float32"
        assert [p.step for p in proof.comparisons[0].tokens.partings] == [1] * len(PROMPTS)

    def test_a_prompt_of_other_tokens_is_found_before_all_else(self, tiny, monkeypatch):
        other = reference.prompt_ids
        monkeypatch.setattr(
            reference, "prompt_ids", lambda *given: [ids[:-1] for ids in other(*given)]
        )
        proof = proof_of(tiny, dtype="float32")
        assert "prompt 'caption en' has other tokens" in proof.verdict

    def test_a_tokenizer_that_transformers_cannot_read_proves_nothing(self, tiny, monkeypatch):
        def fail(*_):
            raise OSError("no tokenizer here\nand more")

        monkeypatch.setattr(reference, "prompt_ids", fail)
        proof = proof_of(tiny, dtype="float32")
        assert (proof.prompts.same, proof.prompts.reason) == (None, "no tokenizer here")
        assert proof.same


def outputs(tokens, steps=None):
    return StageOutputs(torch.zeros(1), torch.zeros(1), tuple(tokens), steps)


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
    def test_rows_may_part_at_ties_only(self, mine, same, agreeing):
        reported = compare.compare_tokens(
            outputs([mine]), outputs([(2, 0)], (self.STEPS,)), None, image_token=3, exact=True
        )
        assert (reported.same, reported.agreeing) == (same, agreeing)
        json.dumps(asdict(reported), allow_nan=False)

    def test_in_bfloat16_the_noise_says_what_a_tie_is(self):
        there = outputs([(2, 0)], (self.STEPS,))
        for noise, same in ((0.1, True), (0.01, False)):
            eager = outputs([(2, 0)], (self.STEPS + noise,))
            reported = compare.compare_tokens(
                outputs([(2, 2)]), there, eager, image_token=3, exact=False
            )
            assert reported.same is same


class TestNumbers:
    def test_what_is_no_number_is_different_and_can_be_printed(self):
        there = torch.tensor([[1.0, 2.0]])
        for value in (float("nan"), float("inf")):
            reported = compare.compare_tensors(
                "x", torch.tensor([[1.0, value]]), there, None, exact=True
            )
            assert not reported.same
            assert reported.first == (0, 1)
            json.dumps(asdict(reported), allow_nan=False)

    def test_the_bound_grows_with_the_values(self):
        for scale, apart, same in ((1, 2e-4, False), (1, 9e-5, True), (50, 4e-3, True)):
            there = torch.tensor([[0.1, 1.0]]) * scale
            reported = compare.compare_tensors("x", there + apart, there, None, exact=True)
            assert reported.same is same

    def test_noise_is_no_excuse_for_one_far_value(self):
        there = torch.ones(4, 1000)
        mine = there.clone()
        mine[2, 500] += 0.1
        reported = compare.compare_tensors("x", mine, there, there + 0.01, exact=False)
        assert (reported.same, reported.first) == (False, (2, 500))
        assert compare.compare_tensors("x", there + 0.015, there, there + 0.01, exact=False).same


class TestRoom:
    def test_what_does_not_fit_is_skipped_and_said(self, tiny, monkeypatch):
        monkeypatch.setattr(dtypes, "_needed", lambda config, itemsize, *given: itemsize)
        monkeypatch.setattr(dtypes, "free_bytes", lambda device: 2)
        proof = proof_of(tiny)
        assert [run.dtype for run in proof.comparisons] == ["bfloat16"]
        assert proof.left_out[0].startswith("float32: it needs")
        with pytest.raises(NoUsableDevice, match="too little memory"):
            proof_of(tiny, dtype="float32")

    def test_without_transformers_the_command_that_installs_it_is_reported(self, tiny, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(UsageError, match="transformers") as refused:
            proof_of(tiny)
        assert "pip install" in refused.value.hint


class TestCommand:
    def test_nothing_but_the_proof_is_printed(self, tiny):
        run = subprocess.run(
            [sys.executable, "-m", "pgcli", "verify", str(tiny), "--json", "--dtype", "float32"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert (run.returncode, run.stderr) == (0, "")
        reported = json.loads(run.stdout)
        assert reported["same"] is True
        assert reported["path"] == str(tiny)
        assert reported["comparisons"][0]["logits"]["largest"] < 1e-4

    def test_a_difference_is_exit_5_with_the_stage(self, tiny, damage, capsys):
        damage(change_weight("decoder.norm.weight", 1.5))
        code = main(["verify", str(tiny), "--dtype", "float32", "--images", str(EXAMPLES)])
        out, err = capsys.readouterr()
        assert code == 5
        assert out.splitlines()[-1] == "verdict\tdifferent: prefill logits differ in float32"
        assert "first at row 0, token " in out
        assert err.startswith("pgcli: different: prefill logits differ in float32\nhint: ")


def test_no_code_of_a_checkpoint_is_run(tiny, tmp_path, monkeypatch):
    """transformers, left to itself, asks on the terminal whether it may."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    ran = tmp_path / "ran"
    (folder / "tok.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Tok: pass\n")
    file = folder / "tokenizer_config.json"
    values = json.loads(file.read_text())
    file.write_text(
        json.dumps(
            values | {"auto_map": {"AutoTokenizer": ["tok.Tok", None]}, "tokenizer_class": "Tok"}
        )
    )
    asked = []
    monkeypatch.setattr("builtins.input", lambda *reported: asked.append(reported) or "y")
    with suppress(ValueError, OSError):  # it may refuse the folder, and must not run it
        reference.prompt_ids(folder, ("caption en",))
    assert not ran.exists()
    assert not asked


def test_eager_only_models_have_the_noise_of_one_rounding_step(tiny2):
    """Gemma 2 has no sdpa there; were vision's two ways equal too, no noise would be known."""
    config, vocabulary = read_config(tiny2), Tokenizer.from_folder(tiny2)
    side = config.vision.resolution
    items = default_images()
    pictures = [decode(item, ImageSpec(side), ImageLimits()) for item in items]
    given = make_inputs(pictures, vocabulary, config, read_preprocessing(tiny2, side))
    model = reference.load_reference(tiny2, torch.bfloat16, torch.device("cpu"))
    first, other = reference_outputs(model, given), eager_outputs(model, given)
    again = reference_outputs(model, given)  # nothing is left behind in the model
    assert torch.equal(again.features_BPD, other.features_BPD)
    noise = (first.logits_BV - other.logits_BV).abs().mean()
    assert 0 < noise < 0.1 * first.logits_BV.std()
