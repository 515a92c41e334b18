"""`pgcli train` of PaliGemma through the command line: adapters, whole weights, resume."""

import json
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from pgcli.cli.main import main
from pgcli.engine import memory
from pgcli.training.answers import AnswerTask
from pgcli.training.trainer import Trainer
from tests.support.training import metrics, stop_after, write_checkpoint, write_questions

COMMAND = "--model base --workers 0 --device cpu --dtype float32"
SHORT = f"{COMMAND} --steps 4 --batch-size 6 --warmup 0"
LORA, FULL = f"{SHORT} --learning-rate 1e-2", f"{SHORT} --method full --learning-rate 1e-3"

Run = Callable[[str], int]


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    """Runs `pgcli train` in a folder with a manifest `questions.jsonl` and a model `base`."""
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path)
    write_questions(tmp_path / "eval", count=8, first=30)
    write_checkpoint(tmp_path / "base")
    return lambda words: main(["train", *words.split()])


def adapter(folder: str) -> dict[str, Tensor]:
    return load_file(Path(folder, "adapter_model.safetensors"))


def answers(words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a model answers to the questions that it is evaluated on."""
    capsys.readouterr()
    options = "--workers 0 --device cpu --dtype float32 --max-new-tokens 20 --prompt-column prefix"
    assert main(["ask", "eval/questions.jsonl", *words.split(), *options.split()]) == 0
    return [json.loads(line)["answer"] for line in capsys.readouterr().out.splitlines()]


def truths() -> list[str]:
    lines = Path("eval/questions.jsonl").read_text().splitlines()
    return [json.loads(line)["suffix"] for line in lines]


def same_files(one: str, other: str) -> bool:
    """Whether two folders have the same weights, bit by bit."""
    names = ("adapter_model.safetensors", "model.safetensors")
    pairs = [(Path(one, name), Path(other, name)) for name in names if Path(one, name).exists()]
    return bool(pairs) and all(a.read_bytes() == b.read_bytes() for a, b in pairs)


def test_best_weights_give_the_best_answers(run, capsys):
    """The metric of an evaluation is that of the answers of the commands."""
    options = f"{COMMAND} --method full --learning-rate 1e-2 --steps 24 --batch-size 12"
    evaluated = "--eval eval/questions.jsonl --eval-every 8"
    assert run(f"questions.jsonl {options} {evaluated} -o out") == 0
    lines = metrics("out")
    assert lines[-1]["loss"] < lines[1]["loss"] / 4
    best = json.loads(Path("out/run.json").read_text())["result"]["best"]
    measured = [line["eval_exact"] for line in lines if "eval_loss" in line]
    assert best["exact"] == max(measured) > 0.5
    for folder, share in (("out", best["exact"]), ("out/last", measured[-1])):
        pairs = zip(answers(f"--model {folder}", capsys), truths(), strict=True)
        assert share == pytest.approx(sum(one == other for one, other in pairs) / 8)


@pytest.mark.parametrize("room", [0.5, 2.0])
def test_full_disk_ends_the_run_and_the_command_resumes(run, monkeypatch, capsys, room):
    """The adapter does not fit, or the state of an update, which has the moments too."""
    monkeypatch.setattr(Trainer, "_is_saved", lambda self, seconds: room > 1)
    assert run(f"questions.jsonl {LORA} -o whole") == 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = int(room * Path("whole/adapter_model.safetensors").stat().st_size)
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        assert run(f"questions.jsonl {LORA} -o full") == 14
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert re.search(r"cannot write .*full.*: File too large\nhint: free", capsys.readouterr().err)
    assert run(f"questions.jsonl {LORA} -o full") == 0
    assert same_files("whole", "full")
    assert [line["step"] for line in metrics("full")] == [1, 2, 3, 4]


def test_oom_halves_the_micro_batch_and_keeps_the_updates(run, monkeypatch):
    assert run(f"questions.jsonl {LORA} -o whole") == 0
    monkeypatch.setattr(memory.gc, "collect", lambda: 0)  # it takes seconds with all modules there
    loss = AnswerTask._loss
    sizes: list[int] = []

    def limited(task: AnswerTask, batch: Any) -> Any:
        if len(batch.rows) > 2:
            raise torch.OutOfMemoryError("no memory")
        sizes.append(len(batch.rows))
        return loss(task, batch)

    monkeypatch.setattr(AnswerTask, "_loss", limited)
    assert run(f"questions.jsonl {LORA} -o halved") == 0
    assert set(sizes) == {1}  # activations are computed twice first, which does not suffice
    for one, other in zip(metrics("whole"), metrics("halved"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
    assert run(f"questions.jsonl {LORA} --micro-batch 4 -o fixed") == 17


def test_run_resumes_with_another_micro_batch(run, monkeypatch):
    assert run(f"questions.jsonl {LORA} -o whole") == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        run(f"questions.jsonl {LORA} -o parts")
    assert run(f"questions.jsonl {LORA} --micro-batch 4 -o parts") == 0
    for one, other in zip(metrics("whole"), metrics("parts"), strict=True):
        for name in ("loss", "gradient_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-4), name
    assert run(f"questions.jsonl {LORA} --batch-size 5 -o parts") == 13


def test_gradient_checkpointing_changes_no_bit(run, monkeypatch):
    for name, largest in (("kept", 10**9), ("recomputed", 0)):
        monkeypatch.setattr("pgcli.training.answers.LARGE_BYTES", largest)
        assert run(f"questions.jsonl {FULL} --dropout 0.1 -o {name}") == 0
    assert same_files("kept", "recomputed")


def test_full_training_that_does_not_fit_the_device_is_refused(run, capsys, monkeypatch):
    monkeypatch.setattr("pgcli.training.answers.free_bytes", lambda device: 10_000)
    assert run(f"questions.jsonl {LORA} -o adapter") == 0
    assert run(f"questions.jsonl {FULL} -o out") == 17
    stderr = capsys.readouterr().err
    assert "must fit on each device" in stderr
    assert "--method lora" in stderr


@pytest.mark.parametrize("freeze", ["vision,projector", "vision --freeze projector"])
def test_frozen_parts_stay_and_the_others_change(run, freeze):
    assert run(f"questions.jsonl {FULL} --freeze {freeze} -o out") == 0
    before, after = load_file("base/model.safetensors"), load_file("out/model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith(("language_model", "model.language_model")) for name in changed)


def test_adapter_learns_over_int8_weights(run):
    for quantize in ("none", "int8"):
        assert run(f"questions.jsonl {LORA} --quantize {quantize} -o {quantize}") == 0
    exact, quantized = metrics("none"), metrics("int8")
    assert quantized[0]["loss"] == pytest.approx(exact[0]["loss"], rel=0.02)
    assert quantized[0]["loss"] != exact[0]["loss"]
    assert quantized[-1]["loss"] < quantized[0]["loss"]


def test_merged_checkpoint_answers_like_its_adapter(run, capsys):
    assert run(f"questions.jsonl {LORA} -o out") == 0
    assert not Path("out/merged").exists()
    found = answers("--model base --adapter out", capsys)
    assert run(f"questions.jsonl {LORA} --merge -o out") == 0
    assert answers("--model out/merged", capsys) == found


def test_loss_that_is_not_finite_names_the_rows(run, monkeypatch, capsys):
    loss = AnswerTask._loss

    def broken(task: AnswerTask, batch: Any) -> Any:
        found = loss(task, batch)
        return found._replace(sum=found.sum * float("nan"))

    monkeypatch.setattr(AnswerTask, "_loss", broken)
    assert run(f"questions.jsonl {LORA} --batch-size 2 -o out") == 15
    assert ".png" in capsys.readouterr().err.split("the loss of step 1 is nan", 1)[1]


@pytest.mark.parametrize("plan", ["", "--dry-run"])
def test_a_model_without_answers_is_refused_before_it_loads(run, capsys, plan):
    assert run(f"questions.jsonl {LORA} --model demo-towers {plan} -o out") == 2
    assert "demo-towers is not a PaliGemma" in capsys.readouterr().err


def test_dry_run_prints_the_plan(run, capsys):
    assert run(f"questions.jsonl {LORA} --dry-run -o out") == 0
    err = capsys.readouterr().err
    assert "task: answer, --method lora" in err
    assert "steps: 4, 2 per epoch" in err
    assert not Path("out").exists()


def test_run_continues_from_an_adapter(run, capsys):
    first = f"{LORA} --rank 4 --alpha 6 --targets all"
    assert run(f"questions.jsonl {first} -o first") == 0
    assert (
        run(f"questions.jsonl {LORA} --adapter first --steps 1 --learning-rate 1e-9 -o next") == 0
    )
    before, after = adapter("first"), adapter("next")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-7)
    config = json.loads(Path("next/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 6)
    assert metrics("next")[0]["loss"] < metrics("first")[0]["loss"]
    capsys.readouterr()
    assert run(f"questions.jsonl {LORA} --adapter first --rank 8 -o more") == 2
    assert "--adapter already has a rank" in capsys.readouterr().err
    assert run(f"questions.jsonl {LORA} --adapter base -o more") == 2
    assert "base has no adapter_config.json" in capsys.readouterr().err
    assert run(f"questions.jsonl {first} --epochs 3 -o first".replace("--steps 4 ", "")) == 13
    assert "--adapter first and another -o" in capsys.readouterr().err
