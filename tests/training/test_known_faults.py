"""What other trainers get wrong. Each check sees `pgcli train` from the outside, by its files.

The checks pass on the trainer as it is, and fail where the fault is planted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pgcli
from pgcli.checkpoints import adapters
from pgcli.checkpoints.adapter_file import AdapterTensors
from pgcli.checkpoints.config import read_config
from pgcli.cli.job.shutdown import GracefulShutdown
from pgcli.cli.main import main
from pgcli.engine.loader import read_tokenizer
from pgcli.errors import InvalidCheckpoint
from pgcli.model.paligemma import PaliGemma
from pgcli.training import answer_loss, answer_task, setup_answers, start_answers, trainer
from pgcli.training.answer_task import AnswerTask
from pgcli.training.packing import TokenizedExample
from pgcli.training.task_data import TaskData
from tests.support.tiny_paligemma import write_checkpoint
from tests.support.training_data import draw

Patch = pytest.MonkeyPatch
ADAPTER = "adapter_model.safetensors"
#: Prompts and answers of several lengths, each of an image of its own.
PAIRS = [
    ("what colour is it?", "red"),
    ("is there a green star on a white background in the picture?", "yes"),
    ("caption en", "a blue square and two red circles on a white background"),
    ("where is the star?", "above the circle"),
    ("how many " + "small red circles and " * 6 + "stars are there?", "4"),
    ("ocr", "a"),
]
LORA = "--rank 4 --learning-rate 0.05 --warmup 0"
#: A run of three epochs of two updates.
EPOCHS = f"{LORA} --batch-size 3 --epochs 3"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder with a random model `tiny` and a manifest `rows.jsonl`."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "tiny")
    rows = []
    for number, (prompt, answer) in enumerate(PAIRS):
        draw(tmp_path / f"{number}.png", number)
        rows.append({"image": f"{number}.png", "prefix": prompt, "suffix": answer})
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def train(out: str, options: str, *, model: str = "tiny") -> list[dict[str, Any]]:
    """The metrics of a run into the folder `out`."""
    words = f"rows.jsonl --model {model} -o {out} --workers 0 --device cpu --dtype float32 -q"
    assert main(["train", *words.split(), *options.split()]) == 0
    lines = Path(out, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def answer_losses(images: str = ".", **options: Any) -> list[float]:
    """The mean over each answer's tokens of -log p, as the engine scores the answer."""
    engine = pgcli.load("tiny", device="cpu", dtype="float32", **options)
    tokenizer = read_tokenizer(Path("tiny"), read_config(Path("tiny")))
    losses = []
    for number, (prompt, answer) in enumerate(PAIRS):
        (found,) = engine.ask(f"{images}/{number}.png", prompt, choices=[answer, "purple"])
        logprobs = {one.text: one.logprob for one in found.choices or ()}
        losses.append(-logprobs[answer] / (len(tokenizer.encode_answer(answer)) + 1))
    return losses


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)


def halve(name: str) -> None:
    """Write the model `tiny` in bfloat16."""
    shutil.copytree("tiny", name)
    tensors = load_file("tiny/model.safetensors")
    half = {name: one.bfloat16() for name, one in tensors.items()}
    save_file(half, f"{name}/model.safetensors", metadata={"format": "pt"})


def seen_rows(patch: Patch) -> list[list[str]]:
    """The images of each update that is made from now on."""
    seen: list[list[str]] = []
    update = trainer.Trainer._update

    def recorded(self: trainer.Trainer, batch: Any, *more: Any) -> Any:
        seen.append([row.item.id for row in batch.rows])
        return update(self, batch, *more)

    patch.setattr(trainer.Trainer, "_update", recorded)
    return seen


# --- checks


def check_loss(patch: Patch) -> None:
    """The loss of an update is what the engine gives the answers, each with its stop token."""
    (line,) = train("out", f"{LORA} --batch-size 6 --steps 1")
    assert line["rows"] == len(PAIRS)
    assert line["loss"] == pytest.approx(mean(answer_losses()), rel=1e-4)


def check_accumulation(patch: Patch) -> None:
    """Losses and gradients of updates in several parts are those of the whole batch."""
    for kind in ("example", "token"):
        options = f"{LORA} --batch-size 6 --steps 2 --loss-mean {kind}"
        whole = train(f"{kind}-6", f"{options} --micro-batch 6")
        parts = train(f"{kind}-4", f"{options} --micro-batch 4")
        for one, other in zip(whole, parts, strict=True):
            for name in ("loss", "gradient_norm"):
                assert one[name] == pytest.approx(other[name], rel=1e-4), (kind, name)


def check_resume(patch: Patch) -> None:
    """A resumed run sees each row once an epoch, in the order of a run at once."""
    seen = seen_rows(patch)
    train("whole", EPOCHS)
    expected = seen.copy()
    seen.clear()
    with patch.context() as interrupted:
        left = iter([False, False])
        interrupted.setattr(GracefulShutdown, "should_stop", lambda _: next(left, True))
        train("parts", EPOCHS)
    train("parts", EPOCHS)
    assert seen == expected
    for epoch in range(3):
        rows = [*seen[2 * epoch], *seen[2 * epoch + 1]]
        assert sorted(rows) == [f"{number}.png" for number in range(len(PAIRS))]
    assert Path("parts", ADAPTER).read_bytes() == Path("whole", ADAPTER).read_bytes()


def check_keys(patch: Patch) -> None:
    """An adapter whose keys are named otherwise is refused, in place of changing nothing."""
    train("out", f"{LORA} --batch-size 6 --steps 2")
    shutil.copytree("out", "renamed")
    tensors = load_file(f"out/{ADAPTER}")
    renamed = {name.replace(".layers.", ".blocks."): one for name, one in tensors.items()}
    save_file(renamed, f"renamed/{ADAPTER}")
    words = "ask 0.png --prompt colour? --model tiny -o answers.jsonl --overwrite -q --adapter"
    assert main([*words.split(), "out"]) == 0
    assert main([*words.split(), "renamed"]) == 16


def check_merged(patch: Patch) -> None:
    """Merged weights are base + scale * B A, rounded once to the dtype of the base."""
    halve("half")
    train("out", f"{LORA} --batch-size 6 --steps 2 --merge", model="half")
    base, merged = map(decoder_weights, ("half", "out/merged"))
    tensors = load_file(f"out/{ADAPTER}")
    settings = json.loads(Path("out/adapter_config.json").read_text())
    adapted = [key for key in tensors if key.endswith("lora_A.weight")]
    assert len(adapted) == 2 * 4
    for key in adapted:
        product = tensors[key.replace("lora_A", "lora_B")].double() @ tensors[key].double()
        name = key.split(".layers.")[1].replace("lora_A.", "")
        exact = base[name].double() + settings["lora_alpha"] / settings["r"] * product
        ulp = torch.finfo(torch.bfloat16).eps * 2 ** exact.abs().log2().floor()
        assert merged[name].dtype == torch.bfloat16
        assert (merged[name] != base[name]).float().mean() > 0.5
        assert ((merged[name].double() - exact).abs() <= 0.501 * ulp).all(), name


def decoder_weights(folder: str) -> dict[str, Tensor]:
    """The weights of the decoder's layers, by their names in it."""
    weights = load_file(f"{folder}/model.safetensors")
    return {
        name.split(".layers.")[1]: one
        for name, one in weights.items()
        if "language" in name and ".layers." in name
    }


def check_small_updates(patch: Patch) -> None:
    """An update far below the precision of bfloat16 changes the weights that are trained."""
    halve("half")
    options = "--method full --learning-rate 1e-6 --warmup 0 --batch-size 6 --steps 1"
    train("out", options, model="half")
    before, after = map(decoder_weights, ("half", "out"))
    for name, one in before.items():
        if "proj" in name:
            moved = (after[name].double() - one.double()).abs().max().item()
            assert moved == pytest.approx(1e-6, rel=0.2), name


def check_best(patch: Patch) -> None:
    """The saved weights have the loss of the best evaluation, which is not the last one."""
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        draw(Path("held", row["image"]), number + 100)  # copies of trained images are refused
        row["image"] = f"held/{row['image']}"
    Path("held.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rate = "--rank 4 --learning-rate 0.3 --warmup 0 --batch-size 6 --steps 5"
    losses = [
        line["eval_loss"] for line in train("out", f"{rate} --eval held.jsonl --eval-every 1")
    ]
    assert losses[-1] > min(losses) + 0.01
    assert mean(answer_losses("held", adapter="out")) == pytest.approx(min(losses), abs=1e-3)


# --- faults


def plant_causal_prompt(patch: Patch) -> None:
    mask = answer_loss.packed_prefix_lm_mask

    def causal(example: Tensor, is_prefix: Tensor, *, patches: int, **_: Any) -> Tensor:
        none = torch.zeros_like(is_prefix)
        return mask(example, none, patches=patches, image_attends_to_prompt=False)

    patch.setattr(answer_loss, "packed_prefix_lm_mask", causal)


def plant_loss_over_the_prompt(patch: Patch) -> None:
    pack = answer_loss.pack

    def every(examples: Any, **options: Any) -> Any:
        found = pack(examples, **options)
        for row in found:
            last = int((row.example_T > 0).sum()) - 1
            row.target_T[:last] = row.token_T[1 : last + 1]
        return found

    patch.setattr(answer_loss, "pack", every)


def plant_no_stop_token(patch: Patch) -> None:
    tokens = answer_task.tokenized

    def without(*given: Any) -> TokenizedExample:
        found = tokens(*given)
        return found._replace(suffix=found.suffix[:-1])

    patch.setattr(answer_task, "tokenized", without)


def plant_cut_image(patch: Patch) -> None:
    features = AnswerTask._features

    def cut(self: AnswerTask, batch: Any) -> Tensor:
        found = features(self, batch).clone()
        found[:, -1] = 0
        return found

    patch.setattr(AnswerTask, "_features", cut)


def plant_mean_of_parts(patch: Patch) -> None:
    loss = AnswerTask._loss

    def of_part(self: AnswerTask, batch: Any) -> tuple[Tensor, int]:
        found, tokens = loss(self, batch)
        return found / self.weight(batch), tokens

    patch.setattr(AnswerTask, "_loss", of_part)


def plant_data_from_the_beginning(patch: Patch) -> None:
    batches = TaskData.row_batches
    patch.setattr(TaskData, "row_batches", lambda self, first, stop: batches(self, 0, stop - first))


def plant_unmatched_keys_are_ignored(patch: Patch) -> None:
    read = adapters.read_adapter

    def tolerant(*given: Any) -> AdapterTensors:
        try:
            return read(*given)
        except InvalidCheckpoint:
            return AdapterTensors({}, {})

    patch.setattr(adapters, "read_adapter", tolerant)
    patch.setattr(adapters, "check_adapter", lambda *_: None)


def plant_product_in_half_precision(patch: Patch) -> None:
    def merge(weight: Tensor, up: Tensor, down: Tensor, scale: float, *_: Any) -> bool:
        weight += (scale * up @ down).to(weight.dtype)
        return True

    patch.setattr(adapters, "merge_product", merge)


def plant_half_precision_weights(patch: Patch) -> None:
    def plain(model: PaliGemma, **_: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), weight_decay=0.0)

    patch.setattr(start_answers, "base_dtype", lambda *_: torch.bfloat16)
    patch.setattr(setup_answers, "base_dtype", lambda *_: torch.bfloat16)
    patch.setattr(trainer, "make_optimizer", plain)


def plant_last_is_best(patch: Patch) -> None:
    patch.setattr(AnswerTask, "rank", lambda _, found: ("step" not in found,))  # the best has one


FAULTS = {
    plant_causal_prompt: check_loss,
    plant_loss_over_the_prompt: check_loss,
    plant_no_stop_token: check_loss,
    plant_cut_image: check_loss,
    plant_mean_of_parts: check_accumulation,
    plant_data_from_the_beginning: check_resume,
    plant_unmatched_keys_are_ignored: check_keys,
    plant_product_in_half_precision: check_merged,
    plant_half_precision_weights: check_small_updates,
    plant_last_is_best: check_best,
}


# --- tests


def test_loss_is_that_of_the_answers_as_the_engine_scores_them(
    folder: Path, monkeypatch: Patch
) -> None:
    check_loss(monkeypatch)


def test_accumulated_updates_are_those_of_the_batch(folder: Path, monkeypatch: Patch) -> None:
    check_accumulation(monkeypatch)


def test_resumed_run_neither_repeats_nor_skips_rows(folder: Path, monkeypatch: Patch) -> None:
    check_resume(monkeypatch)


def test_adapter_with_renamed_keys_is_refused(folder: Path, monkeypatch: Patch) -> None:
    check_keys(monkeypatch)


def test_merged_weights_are_those_of_the_adapter(folder: Path, monkeypatch: Patch) -> None:
    check_merged(monkeypatch)


def test_small_updates_of_bfloat16_weights_are_kept(folder: Path, monkeypatch: Patch) -> None:
    check_small_updates(monkeypatch)


def test_saved_weights_are_those_of_the_best_evaluation(folder: Path, monkeypatch: Patch) -> None:
    check_best(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__.removeprefix("plant_"))
def test_planted_fault_is_noticed(
    folder: Path, monkeypatch: Patch, plant: Callable[[Patch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        FAULTS[plant](monkeypatch)
