"""What other trainers get wrong, as seen from the outside, by the files of `pgcli train`.

The faults of tests/faults/training.toml are planted under them.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pgcli
from pgcli.checkpoints.config import read_config
from pgcli.cli.main import main
from pgcli.engine.loader import read_tokenizer
from pgcli.run.events import GracefulShutdown
from pgcli.training import trainer
from tests.support.exporting import read_rows
from tests.support.training import draw, write_checkpoint

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


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    """The current folder, with a random model `tiny` and a manifest `rows.jsonl`."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)


def write_inputs(folder: Path) -> None:
    """Write a random model `tiny` and a manifest `rows.jsonl`."""
    write_checkpoint(folder / "tiny")
    rows = []
    for number, (prompt, answer) in enumerate(PAIRS):
        draw(folder / f"{number}.png", number)
        rows.append({"image": f"{number}.png", "prefix": prompt, "suffix": answer})
    write_rows(folder / "rows.jsonl", rows)


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def run(words: str, *codes: int) -> int:
    """The exit code of a command, which is one of `codes` or 0."""
    code = main(words.split())
    assert code in (0, *codes), words
    return code


def train(
    out: str, options: str, *codes: int, model: str = "tiny", rows: str = "rows.jsonl"
) -> list[dict[str, Any]]:
    """The metrics of a run into the folder `out`."""
    fixed = f"--model {model} -o {out} --workers 0 --device cpu --dtype float32 -q"
    run(f"train {rows} {fixed} {options}", *codes)
    return read_rows(f"{out}/metrics.jsonl")


def answer_losses(images: str = ".", **options: Any) -> list[float]:
    """The mean over each answer's tokens of -log p, as the engine scores the answer."""
    engine = pgcli.load("tiny", device="cpu", dtype="float32", **options)
    tokenizer = read_tokenizer(Path("tiny"), read_config(Path("tiny")))
    losses = []
    for number, (prompt, answer) in enumerate(PAIRS):
        (found,) = engine.ask(f"{images}/{number}.png", prompt, choice=[answer, "purple"])
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


def decoder_weights(folder: str) -> dict[str, Tensor]:
    """The weights of the decoder's layers, by their names in it."""
    weights = load_file(f"{folder}/model.safetensors")
    return {
        name.split(".layers.")[1]: one
        for name, one in weights.items()
        if "language" in name and ".layers." in name
    }


def seen_rows(patch: Patch) -> list[list[str]]:
    """The images of each update that is made from now on."""
    seen: list[list[str]] = []
    update = trainer.Trainer._update

    def recorded(self: trainer.Trainer, batch: Any, *more: Any) -> Any:
        seen.append([row.item.id for row in batch.rows])
        return update(self, batch, *more)

    patch.setattr(trainer.Trainer, "_update", recorded)
    return seen


def test_loss_equals_the_engines_scores_of_the_answers():
    """The loss of an update is what the engine gives the answers, each with its stop token."""
    (line,) = train("out", f"{LORA} --batch-size 6 --steps 1")
    assert line["rows"] == len(PAIRS)
    assert line["loss"] == pytest.approx(mean(answer_losses()), rel=1e-4)


def test_resumed_run_neither_repeats_nor_skips_rows(monkeypatch):
    """A resumed run sees each row once an epoch, in the order of a run at once."""
    seen = seen_rows(monkeypatch)
    train("whole", EPOCHS)
    expected = seen.copy()
    seen.clear()
    with monkeypatch.context() as interrupted:
        left = iter([False, False])
        interrupted.setattr(GracefulShutdown, "should_stop", lambda _: next(left, True))
        train("parts", EPOCHS)
    assert len(seen) == 3  # it is interrupted in an epoch
    train("parts", EPOCHS)
    assert seen == expected
    for epoch in range(3):
        rows = [*seen[2 * epoch], *seen[2 * epoch + 1]]
        assert sorted(rows) == [f"{number}.png" for number in range(len(PAIRS))]
    assert Path("parts", ADAPTER).read_bytes() == Path("whole", ADAPTER).read_bytes()


def test_merged_weights_equal_base_plus_adapter():
    """Merged weights are base + scale * B A, rounded once to the dtype of the base."""
    halve("half")
    train("out", f"{LORA} --batch-size 6 --steps 2 --merge", model="half")
    base, merged = map(decoder_weights, ("half", "out/merged"))
    tensors = load_file(f"out/{ADAPTER}")
    settings = json.loads(Path("out/adapter_config.json").read_text())
    adapted = [key for key in tensors if key.endswith("lora_A.weight")]
    assert len(adapted) == 2 * 4  # of all layers
    for key in adapted:
        product = tensors[key.replace("lora_A", "lora_B")].double() @ tensors[key].double()
        name = key.split(".layers.")[1].replace("lora_A.", "")
        exact = base[name].double() + settings["lora_alpha"] / settings["r"] * product
        ulp = torch.finfo(torch.bfloat16).eps * 2 ** exact.abs().log2().floor()
        assert merged[name].dtype == torch.bfloat16
        assert (merged[name] != base[name]).float().mean() > 0.5
        in_float32 = torch.finfo(torch.float32).eps * base[name].double().abs()
        assert ((merged[name].double() - exact).abs() <= 0.501 * ulp + in_float32).all(), name


def test_small_updates_of_bfloat16_weights_are_kept():
    """An update far below the precision of bfloat16 changes the weights that are trained."""
    halve("half")
    options = "--method full --learning-rate 1e-6 --warmup 0 --batch-size 6 --steps 1"
    train("out", options, model="half")
    before, after = map(decoder_weights, ("half", "out"))
    for name, one in before.items():
        if "proj" in name:
            assert_moved(one, after[name], 1e-6, name)


def assert_moved(before: Tensor, after: Tensor, rate: float, name: str) -> None:
    """Fail unless most weights have moved by about the learning rate, as Adam moves them first."""
    moved = (after.double() - before.double()).abs()
    assert ((moved > 0.4 * rate) & (moved < 2 * rate)).double().mean() > 0.9, name


def test_saved_weights_have_the_best_evaluation():
    """The saved weights have the loss of the best evaluation, neither the first nor the last."""
    rows = read_rows("rows.jsonl")
    for number, row in enumerate(rows):
        draw(Path("held", row["image"]), number + 100)  # copies of trained images are an error
        row["image"] = f"held/{row['image']}"
    write_rows(Path("held.jsonl"), rows)
    options = "--rank 4 --learning-rate 0.1 --warmup 0 --batch-size 6 --steps 6 --eval-every 1"
    losses = [line["eval_loss"] for line in train("out", f"{options} --eval held.jsonl")]
    # the best one is neither the first nor the last, which is not the worst
    assert min(losses) < min(losses[0], losses[-1]) - 0.01
    assert max(losses) > losses[-1] + 0.01
    assert mean(answer_losses("held", adapter="out")) == pytest.approx(min(losses), abs=1e-3)


def test_rows_too_long_for_the_model_are_skipped_and_listed(monkeypatch):
    """pgcli skips and lists a row that does not fit after the image, and truncates nothing."""
    seen = seen_rows(monkeypatch)
    long = {"image": "0.png", "prefix": "ocr", "suffix": "red " * 200, "id": "long"}
    write_rows(Path("long.jsonl"), [*read_rows("rows.jsonl"), long])
    train("out", f"{LORA} --batch-size 7 --steps 1", 3, rows="long.jsonl")
    assert "long" not in seen[0]
    result = json.loads(Path("out/run.json").read_text())["result"]
    assert result["unreadable"] == ["long"]
