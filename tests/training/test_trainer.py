"""The training loop: resume, evaluations, the best weights, and what stops it."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from pgcli.engine.sequence import check_finite
from pgcli.errors import OutputFailed, TrainingDiverged
from pgcli.model.config import TextConfig, TwoTowersConfig, VisionConfig
from pgcli.model.siglip import TwoTowers
from pgcli.training import run_files
from pgcli.training.run import details, evaluation_line
from pgcli.training.run_files import write_curves
from pgcli.training.task import Loss, Metrics, TrainingTask
from pgcli.training.trainer import Trainer, TrainerOptions, make_optimizer

OPTIONS = TrainerOptions(
    steps=12, learning_rate=0.05, warmup=2, weight_decay=0.1, eval_every=4, save_seconds=0.0
)


MEASURED = {"rows_per_second": 0, "wait_ms": 0, "memory_mb": 0}


class LineFit(TrainingTask):
    """Fits a line with dropout, so that random numbers matter; batches follow from the step."""

    def __init__(self, *, evaluations: list[float] | None = None, broken_step: int | None = None):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.evaluations, self.broken_step = evaluations, broken_step
        self.seen: list[int] = []

    def batches(self, first: int, stop: int) -> Iterator[int]:
        yield from range(first, stop)

    def size(self, batch: int) -> int:
        return 16

    def loss(self, part: int) -> Loss:
        self.seen.append(part)
        loss = self._loss(part)
        return Loss(loss * (math.inf if part == self.broken_step else 16), 16)

    def evaluate(self) -> Metrics:
        if self.evaluations:
            return {"loss": self.evaluations.pop(0)}
        return {"loss": self._loss(10**6).item()}

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        torch.save(self.model.state_dict(), folder / "weights.pt")

    def _loss(self, batch: int) -> Tensor:
        x = torch.randn(16, 3, generator=torch.Generator().manual_seed(batch))
        return F.mse_loss(self.model(x), x.sum(1, keepdim=True))


def trainer(
    folder: Path, task: LineFit | None = None, options: TrainerOptions = OPTIONS
) -> Trainer:
    state = folder / "run.pgcli"
    state.mkdir(parents=True, exist_ok=True)
    return Trainer(task or LineFit(), options, folder, state)


def weights(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "weights.pt", weights_only=True)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def stop_after(updates: int) -> Callable[[], bool]:
    left = iter(range(updates - 1))
    return lambda: next(left, None) is None


@pytest.mark.parametrize("interrupted_at", [1, 4, 11])
def test_resumed_run_ends_with_the_same_weights_bit_for_bit(tmp_path, interrupted_at):
    assert trainer(tmp_path / "whole").run()
    assert not trainer(tmp_path / "parts").run(should_stop=stop_after(interrupted_at))
    task = LineFit()
    assert trainer(tmp_path / "parts", task).run()
    assert task.seen == list(range(interrupted_at, 12))
    for name in (".", "last"):
        whole, parts = weights(tmp_path / "whole" / name), weights(tmp_path / "parts" / name)
        assert all(torch.equal(whole[key], parts[key]) for key in whole)
    for one, other in zip(lines(tmp_path / "whole"), lines(tmp_path / "parts"), strict=True):
        assert one | MEASURED == other | MEASURED


def test_updates_after_the_last_saved_state_are_made_again(tmp_path):
    """As after a kill: the state is older than the metrics, whose last line is incomplete."""
    assert trainer(tmp_path / "whole").run()
    rare = replace(OPTIONS, save_seconds=1e9)
    killed = trainer(tmp_path / "killed", options=rare)
    killed.run(should_stop=stop_after(5))
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "killed", options=rare).run(on_update=interrupt_at(9))
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "los')
    task = LineFit()
    assert trainer(tmp_path / "killed", task).run()
    assert task.seen == list(range(5, 12))
    assert [line["step"] for line in lines(tmp_path / "killed")] == list(range(13))
    whole, killed_weights = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(whole[key], killed_weights[key]) for key in whole)


def interrupt_at(step: int) -> Callable[[Mapping[str, Any]], None]:
    def check(line: Mapping[str, Any]) -> None:
        if line["step"] == step:
            raise KeyboardInterrupt

    return check


def test_best_and_last_weights_are_kept(tmp_path):
    task = LineFit(evaluations=[0.5, 3.0, 1.0, 2.0])
    found = trainer(tmp_path, task)
    assert found.run()
    assert found.progress.best == {"step": 8, "loss": 1.0}
    assert [line["eval_loss"] for line in lines(tmp_path) if "eval_loss" in line] == [0.5, 3, 1, 2]
    assert lines(tmp_path)[0] == {"step": 0, "loss": None, "eval_loss": 0.5}
    best, last = weights(tmp_path), weights(tmp_path / "last")
    assert any(not torch.equal(best[key], last[key]) for key in best)
    model = task.model.state_dict()
    assert all(torch.equal(last[key], model[key]) for key in last)


def test_patience_ends_a_run_that_no_longer_improves(tmp_path):
    options = replace(OPTIONS, steps=40, patience=2)
    found = trainer(tmp_path, LineFit(evaluations=[0.5, 3.0, 1.0, 2.0, 1.5, 0.1]), options)
    assert found.run()
    assert found.progress.step == 16
    assert trainer(tmp_path, LineFit(), options).progress.is_complete


@pytest.mark.parametrize("broken_step", [0, 6])
def test_loss_that_is_not_finite_stops_and_names_the_step(tmp_path, broken_step):
    task = LineFit(broken_step=broken_step)
    with pytest.raises(TrainingDiverged, match=f"the loss of step {broken_step + 1} is inf"):
        trainer(tmp_path, task).run()
    for parameter in task.model.parameters():
        assert parameter.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_non_finite_evaluation_is_never_the_best(tmp_path, value):
    with pytest.raises(TrainingDiverged, match=f"the evaluation's loss of step 4 is {value}"):
        trainer(tmp_path, LineFit(evaluations=[1.0, value])).run()
    assert not (tmp_path / "weights.pt").exists()


def test_nan_scores_in_an_evaluation_are_divergence(tmp_path, monkeypatch):
    monkeypatch.setattr(LineFit, "evaluate", lambda task: check_finite(math.nan))
    with pytest.raises(
        TrainingDiverged, match="in the evaluation of step 0, the model computes NaN"
    ):
        trainer(tmp_path).run()


def test_half_precision_weights_are_not_trained(tmp_path):
    """Updates of bfloat16 weights round to nothing; frozen weights may have any dtype."""
    task = LineFit()
    task.model[0].requires_grad_(requires_grad=False).bfloat16()
    trainer(tmp_path, task)
    task.model[2].bfloat16()
    with pytest.raises(ValueError, match=r"2\.weight is trained in torch\.bfloat16"):
        trainer(tmp_path, task)


@pytest.mark.parametrize("what", ["missing", "of another shape", "cut"])
def test_state_of_another_model_and_damaged_state_are_errors(tmp_path, what):
    trainer(tmp_path).run(should_stop=stop_after(3))
    file = tmp_path / "run.pgcli" / "state.safetensors"
    with safe_open(file, framework="pt") as stored:
        metadata = stored.metadata()
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    bias = tensors.pop("weight.0.bias")
    save_file(tensors | ({} if what == "missing" else {"weight.0.bias": bias[:1]}), file, metadata)
    if what == "cut":
        file.write_bytes(file.read_bytes()[:200])
    named = "" if what == "cut" else r".*weight\.0\.bias"
    with pytest.raises(
        OutputFailed, match=rf"state\.safetensors cannot be read: {named}"
    ) as failure:
        trainer(tmp_path)
    assert what == "cut" or "--overwrite" in failure.value.hint


def test_killed_saves_leave_one_file_at_most(tmp_path):
    """As large as the weights and their moments, it must not be there for each kill."""
    for _ in range(3):
        killed = trainer(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            killed.run(on_update=killed_while_writing(killed))
    assert len([*(tmp_path / "run.pgcli").iterdir()]) <= 2
    assert trainer(tmp_path).run()
    assert [one.name for one in (tmp_path / "run.pgcli").iterdir()] == ["state.safetensors"]


def killed_while_writing(found: Trainer) -> Callable[[Mapping[str, Any]], None]:
    """The next state is written by half; the process has no time to remove it."""

    def kill(line: Mapping[str, Any]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.unlink", lambda *_, **__: None)
            patch.setattr("os.replace", interrupted)
            found._save_state()

    return kill


def interrupted(*args: Any, **options: Any) -> None:
    raise KeyboardInterrupt


def test_gradients_are_scaled_down_to_the_largest_norm(tmp_path):
    """AdamW hardly depends on the gradients' scale, so the norms that it sees are compared."""
    found = trainer(tmp_path, options=replace(OPTIONS, max_grad_norm=1e-3))
    norms = []
    step = found._optimizer.step

    def measured(*args: Any) -> Any:
        gradients = [one.grad for one in found.task.model.parameters() if one.grad is not None]
        norms.append(nn.utils.get_total_norm(gradients).item())
        return step(*args)

    found._optimizer.step = measured
    found.run()
    assert max(norms) < 1.01e-3
    assert lines(tmp_path)[1]["gradient_norm"] > 1e-2


def test_weight_decay_leaves_biases_norms_and_embeddings_alone():
    sizes: Any = {"width": 16, "depth": 1, "mlp_dim": 16, "num_heads": 2}
    vision = VisionConfig(**sizes, patch_size=8, resolution=16)
    text = TextConfig(**sizes, vocab_size=20, max_positions=4)
    model = TwoTowers(TwoTowersConfig("siglip", vision, text, embedding_dim=16))
    model.text_projection.requires_grad_(requires_grad=False)
    groups = make_optimizer(model, weight_decay=0.1, betas=(0.9, 0.999)).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, rest = ([names[id(one)] for one in group["params"]] for group in groups)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert {name.split(".")[-1] for name in decayed} == {"weight", "in_proj_weight"}
    assert "vision.embeddings.patch_embedding.weight" in decayed
    left_alone = {"logit_scale", "logit_bias", "image_pooling.probe", "text.token_embedding.weight"}
    assert left_alone <= set(rest)
    assert not any(name.startswith("text_projection") for name in (*decayed, *rest))


@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_learning_rate_at_the_boundaries(warmup):
    """It rises and falls as a cosine; the first update and the last one learn."""
    schedule = TrainerOptions(steps=5, warmup=warmup, learning_rate=1.0)
    rates = [schedule.rate_of(step) for step in range(5)]
    assert all(0 < rate <= 1 for rate in rates)
    assert max(rates) == 1
    assert TrainerOptions(steps=1, warmup=warmup, learning_rate=1.0).rate_of(0) > 0
    long = TrainerOptions(steps=100 + warmup, warmup=warmup, learning_rate=2.0)
    assert [long.rate_of(n) for n in range(warmup)] == [2 * (n + 1) / warmup for n in range(warmup)]
    assert long.rate_of(warmup + 50) == pytest.approx(1.0)
    assert long.rate_of(warmup + 99) == pytest.approx(1 + math.cos(math.pi * 0.99))


def test_gradient_that_is_not_finite_changes_no_weight(tmp_path):
    """Clipping by such a norm would make every gradient NaN."""
    task = LineFit()
    found = trainer(tmp_path, task)
    weight = next(task.model.parameters())
    weight.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([0]), math.nan))
    before = [one.detach().clone() for one in task.model.parameters()]
    with pytest.raises(TrainingDiverged, match="the gradient norm of step 1 is nan"):
        found.run()
    assert all(map(torch.equal, before, task.model.parameters()))


def test_curves_skip_infinite_values_and_have_six_panels_at_most(tmp_path):
    lines = [{"step": n, "loss": 3 / n, "learning_rate": 1e-4} for n in range(1, 41)]
    for step in (20, 40):
        lines[step - 1] |= {
            "eval_loss": math.inf,
            **{f"eval_metric_{n}": 20 / step for n in "abcde"},
        }
    write_curves(tmp_path / "curves.png", lines, 20)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.size == (3 * run_files.WIDTH, 2 * run_files.HEIGHT)


# --- what a person sees

LINE = {"step": 5, "loss": 0.51234, "learning_rate": 2e-05, "gradient_norm": 0.8, "rows": 4,
        "tokens": 40, "rows_per_second": 31.24, "tokens_per_second": 1312.4, "wait_ms": 1.0,
        "memory_mb": 1500.0}  # fmt: skip


def test_progress_has_loss_rates_and_memory():
    assert details(LINE, [0.5, 0.7]) == (
        "loss 0.6, learning rate 2e-05, gradient norm 0.8, 1,312 tokens/s, 31.2 images/s, 1.5 GB"
    )
    line = LINE | {"eval_loss": 0.75, "eval_exact": 0.5}
    assert evaluation_line(line) == "step 5: loss 0.5123; evaluation: loss 0.75, exact 0.5"
