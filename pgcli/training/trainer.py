"""The training loop of every task: the optimizer, updates, evaluations and exact resume."""

from __future__ import annotations

import json
import math
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pgcli.checkpoints.safetensors_files import TensorSpec, write_tensors
from pgcli.engine.memory import OutOfMemory, run_or_free
from pgcli.errors import InvalidCheckpoint, OutputFailed, TrainingDiverged
from pgcli.stores.writing import published, wrap_write_errors
from pgcli.text import listed
from pgcli.training.options import TrainOptions
from pgcli.training.processes import ALONE, Processes
from pgcli.training.run_files import (
    METRICS,
    append_metrics,
    read_metrics,
    remove_later_metrics,
    write_curves,
)
from pgcli.training.task import TrainingTask

STATE, CURVES, LAST = "state.safetensors", "curves.png", "last"
EPOCHS = 10
EVALUATIONS = 20  # per run without --eval-every
MAX_ROWS = 40  # that a message lists: any of them may be the reason
WEIGHT, STEPS = "weight", "step"
KEY = "progress"  # in the file's metadata


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """The options of the training loop. Equal options and batches resume a run exactly.

    `eval_every` counts updates, `patience` evaluations; 0 disables them. The trainer saves the
    state and draws the curves every `save_seconds`, which does not change the weights.
    """

    steps: int
    learning_rate: float
    warmup: int = 0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    optimizer: type[torch.optim.AdamW] = torch.optim.AdamW
    seed: int = 0
    eval_every: int = 0
    patience: int = 0
    save_seconds: float = 60.0

    @classmethod
    def of(
        cls, options: TrainOptions, steps_per_epoch: int, *, is_evaluated: bool
    ) -> TrainerOptions:
        """The options of the training loop, for this number of steps per epoch."""
        steps = options.steps or (options.epochs or EPOCHS) * steps_per_epoch
        recipe = options.recipe
        every = math.ceil(steps / EVALUATIONS)
        if isinstance(options.eval_every, float):  # in epochs
            every = round(options.eval_every * steps_per_epoch)
        elif options.eval_every is not None:
            every = options.eval_every
        warmup = options.warmup if options.warmup >= 1 else math.ceil(options.warmup * steps)
        return cls(
            steps=steps,
            learning_rate=recipe.learning_rate,
            warmup=min(int(warmup), steps),
            weight_decay=recipe.weight_decay,
            betas=recipe.betas,
            max_grad_norm=options.max_grad_norm,
            seed=options.seed,
            eval_every=max(1, every) if is_evaluated else 0,
            patience=options.patience,
        )

    def rate_of(self, step: int) -> float:
        """The learning rate of a step: linear warm-up, then cosine decay to zero."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def is_decayed(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: to the kernels of linear layers and convolutions.

    Biases, norms, embeddings, the class token, the probe, and the scale and bias of logits have no
    weight decay, as in big_vision and open_clip.
    """
    if sum(size > 1 for size in parameter.shape) < 2:
        return False
    module = name.split(".")[-2] if "." in name else ""
    return "embed" not in module or module == "patch_embedding"


def make_optimizer(
    model: nn.Module,
    *,
    weight_decay: float,
    betas: tuple[float, float],
    kind: type[torch.optim.AdamW] = torch.optim.AdamW,
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters, in two groups: `decayed` and `not decayed`.

    Raises ValueError for parameters in half precision, which would round small updates away.
    """
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    for name, weight in trained:
        if torch.finfo(weight.dtype).bits < 32:
            raise ValueError(f"{name} is trained in {weight.dtype}, not in torch.float32")
    decayed = [weight for name, weight in trained if is_decayed(name, weight)]
    not_decayed = [weight for name, weight in trained if not is_decayed(name, weight)]
    groups = [
        {"name": "decayed", "params": decayed, "weight_decay": weight_decay},
        {"name": "not decayed", "params": not_decayed, "weight_decay": 0.0},
    ]
    return kind([group for group in groups if group["params"]], betas=betas)


class Trainer:
    """A training run, with its results in `folder` and its state in `state_folder`.

    An interrupted and resumed run has the same weights as an uninterrupted one: the step determines
    the batch, seed and step determine random numbers, and the state has the rest. Each of several
    `processes` computes a share of an update's rows; the first evaluates and writes.
    """

    def __init__(
        self,
        task: TrainingTask,
        options: TrainerOptions,
        folder: Path,
        state_folder: Path,
        processes: Processes = ALONE,
    ):
        self.task, self.options, self.folder = task, options, folder
        self.processes = processes
        self._state_file = state_folder / STATE
        self._optimizer = make_optimizer(
            task.model,
            weight_decay=options.weight_decay,
            betas=options.betas,
            kind=options.optimizer,
        )
        self._trained = [weight for weight in task.model.parameters() if weight.requires_grad]
        self.progress = load_state(self._state_file, task.model, self._optimizer)

    def run(
        self,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_update: Callable[[Mapping[str, Any]], None] = lambda line: None,
    ) -> bool:
        """Train to the end, or until `should_stop()`; return whether the run is complete.

        With evaluations, the line of step 0 has the values before the first update. Calls
        `on_update` with each line of metrics. If one of several processes should stop, all stop
        after the same update. Raises TrainingDiverged.
        """
        if self.progress.is_complete:
            return True
        is_first, metrics = self.processes.is_first, self.folder / METRICS
        if is_first:
            remove_later_metrics(metrics, self.progress.step or -1)
        if self.options.eval_every and not self.progress.step:
            before = {"step": 0, "loss": None, **self._evaluate(keeps_best=False)}
            if is_first:
                append_metrics(metrics, before)
            on_update(before)
        batches = self.task.batches(self.progress.step, self.options.steps)
        saved_at, began = monotonic(), perf_counter()
        for batch in batches:
            line = self._update(batch, began)
            step, every = self.progress.step, self.options.eval_every
            if every and (step % every == 0 or step == self.options.steps):
                line |= self._evaluate()
            if is_first:
                append_metrics(metrics, line)
            on_update(line)
            if self.processes.largest(should_stop()) or self._has_converged():
                break
            if self._is_saved(monotonic() - saved_at):
                self._save_state()
                saved_at = monotonic()
            began = perf_counter()
        batches.close()  # stops the decoding workers
        self._finish()
        return self.progress.is_complete

    def _update(self, batch: Any, began: float) -> dict[str, Any]:
        """Update the weights; return the metrics. Waited for the batch since `began`."""
        waited, step = perf_counter() - began, self.progress.step
        learning_rate = self.options.rate_of(step)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self.task.model.train()
        sizes = self.processes.gather(self.task.size(batch))
        metrics: dict[str, Any] = {"loss": None, "rows": sum(sizes)}
        norm = None
        if sum(sizes):  # else all images are unreadable, and the weights do not change
            metrics |= self._add_gradients(batch)
            limit = self.options.max_grad_norm or math.inf
            norm = nn.utils.clip_grad_norm_(self._trained, limit).item()
            for name, value in (("loss", metrics["loss"]), ("gradient norm", norm)):
                if not math.isfinite(value):
                    raise diverged(f"the {name} of step {step + 1} is {value}{named_rows(batch)}")
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        if hasattr(batch, "lost"):
            metrics["lost"] = sum(self.processes.gather(batch.lost))
        self.progress.step += 1
        seconds = perf_counter() - began
        speeds = {
            f"{name}_per_second": metrics[name] / seconds
            for name in ("rows", "tokens")
            if name in metrics
        }
        return {
            "step": self.progress.step,
            **metrics,
            "learning_rate": learning_rate,
            "gradient_norm": norm,
            **speeds,
            "wait_ms": waited * 1e3,
            "memory_mb": peak_memory_mb(),
        }

    def _add_gradients(self, batch: Any) -> dict[str, float]:
        """Compute the gradients of the mean loss over all processes' rows; return the metrics.

        Halves the micro-batch and repeats the update when memory runs out. Raises NoUsableDevice.
        """
        micro_batches, size = self.task.micro_batches, self.task.size(batch)
        while True:
            try:
                sums = run_or_free(lambda: self._backward(batch))
                break
            except OutOfMemory:
                micro_batches.halve(min(micro_batches.rows or size, size))
            self.task.model.zero_grad(set_to_none=True)
        total = reduce(added, self.processes.gather(sums))
        weight, tokens = total.pop("weight"), total.pop("tokens")
        self.processes.add_gradients(self._trained, 1 / weight)
        means = {name: value / weight for name, value in total.items()}
        return means | ({"tokens": tokens} if tokens else {})

    def _backward(self, batch: Any) -> dict[str, float]:
        """Add the gradients of this process's summed loss; return the sums of its metrics."""
        sums: dict[str, float] = {}
        for number, part in enumerate(self.task.parts(batch)):
            # the same dropout when an update is repeated
            torch.manual_seed(self.processes.seed(self.options.seed, self.progress.step, number))
            loss = self.task.loss(part)
            loss.sum.backward()  # type: ignore[no-untyped-call]
            own = {"loss": loss.sum.item(), "weight": loss.weight, "tokens": loss.tokens}
            sums = added(sums, {**own, **loss.sums})
        return sums  # empty for a process without rows

    def _evaluate(self, *, keeps_best: bool = True) -> dict[str, Any]:
        """The values of an evaluation as metrics; with `keeps_best`, the best weights are saved."""
        self.task.model.eval()
        with torch.no_grad():
            values = self._measure() if self.processes.is_first else {}
        values = self.processes.gather(values)[0]
        if keeps_best and (
            not self.progress.best or self.task.is_better(values, self.progress.best)
        ):
            self.progress.best = {"step": self.progress.step, **values}
            self.progress.waiting = 0
            self._save_model(self.folder)
        elif keeps_best:
            self.progress.waiting += 1
        return {f"eval_{name}": value for name, value in values.items()}

    def _measure(self) -> dict[str, float]:
        """The metrics of an evaluation. Raises TrainingDiverged if they are not finite."""
        step = self.progress.step
        try:
            values = dict(self.task.evaluate())
        except InvalidCheckpoint as problem:  # the engine raises it for scores of NaN
            raise diverged(f"in the evaluation of step {step}, {problem}") from problem
        if not math.isfinite(values["loss"]):
            raise diverged(f"the evaluation's loss of step {step} is {values['loss']}")
        return values

    def _has_converged(self) -> bool:
        return 0 < self.options.patience <= self.progress.waiting

    def _finish(self) -> None:
        """Save the state, and the last weights of a complete run."""
        is_complete = self.progress.step >= self.options.steps or self._has_converged()
        if is_complete:
            self._save_model(self.folder / LAST if self.options.eval_every else self.folder)
        self.progress.is_complete = is_complete
        self._save_state()

    def _save_model(self, folder: Path) -> None:
        if self.processes.is_first:
            with wrap_write_errors(folder):
                self.task.save(folder)

    def _is_saved(self, seconds: float) -> bool:
        """Whether to save the state again, `seconds` after the last time in the first process."""
        is_due = self.processes.is_first and seconds >= self.options.save_seconds
        return bool(self.processes.largest(is_due))

    def _save_state(self) -> None:
        """Save the state, and draw the curves up to it."""
        if self.processes.is_first:
            save_state(self._state_file, self.progress, self.task.model, self._optimizer)
            lines = read_metrics(self.folder / METRICS)
            write_curves(self.folder / CURVES, lines, self.progress.best.get("step"))


def added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The sums of the values by name."""
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


def diverged(message: str) -> TrainingDiverged:
    """The error for a diverged run."""
    return TrainingDiverged(
        message,
        hint="start over with <--overwrite> and a smaller <--learning-rate=>, a longer "
        "<--warmup=> or a smaller <--max-grad-norm=>",
    )


def named_rows(batch: Any) -> str:
    """`; its rows are a.png, b.png` in this process; empty for a batch without named rows."""
    names = [row.item.id for row in getattr(batch, "rows", ())]
    return f"; its rows are {listed(names, MAX_ROWS)}" if names else ""


def peak_memory_mb() -> float:
    """The peak memory of the GPU, or of this process without one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


@dataclass
class TrainingProgress:
    """The progress of a run: its updates, its best evaluation and whether it is complete.

    `waiting` counts the evaluations since the best one.
    """

    step: int = 0
    best: dict[str, float] = field(default_factory=dict)
    waiting: int = 0
    is_complete: bool = False


def save_state(
    file: Path,
    progress: TrainingProgress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Replace the file by the current state; the state of a complete run is its progress only.

    The file is the same for any number of processes, and the first writes it.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in _trained(model).items() if not progress.is_complete else ():
        tensors[f"{WEIGHT}.{name}"] = parameter.detach()
        for kind, value in optimizer.state[parameter].items():
            tensors[f"{kind}.{name}"] = value
    specs = [TensorSpec(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    with published(file, is_owner=True) as path:
        write_tensors(path, specs, iter(tensors.values()), {KEY: json.dumps(asdict(progress))})


def load_state(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingProgress:
    """Fill the model and the optimizer from the file; return the progress of the run.

    Without a file, returns the progress of a new run. Raises OutputFailed if the file is damaged or
    belongs to another model.
    """
    if not file.exists():
        return TrainingProgress()
    try:
        with safe_open(file, framework="pt") as saved:
            progress = TrainingProgress(**json.loads(saved.metadata()[KEY]))
            if not progress.is_complete:
                _fill(saved, model, optimizer)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise OutputFailed(
            f"the saved state {file} cannot be read: {error}", hint="<--overwrite> starts over"
        ) from error
    return progress


def _fill(saved: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    parameters = _trained(model)
    if missing := {f"{WEIGHT}.{name}" for name in parameters} - {*saved.keys()}:
        raise KeyError(min(missing))
    for key in saved.keys():  # noqa: SIM118
        kind, _, name = key.partition(".")
        parameter, tensor = parameters[name], saved.get_tensor(key)
        if kind != STEPS and tensor.shape != parameter.shape:
            raise ValueError(f"{key} has the shape {[*tensor.shape]}")
        if kind == WEIGHT:
            parameter.data.copy_(tensor)
        else:
            # AdamW keeps its count of steps on the CPU
            value = tensor if kind == STEPS else tensor.to(parameter.device)
            optimizer.state[parameter][kind] = value


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
