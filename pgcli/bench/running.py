"""Both programs measured side by side on one checkpoint, and against the machine's limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from pgcli import tasks
from pgcli.bench import machine
from pgcli.bench.loading import beside
from pgcli.bench.machine import Machine
from pgcli.bench.measure import in_turns
from pgcli.bench.ours import Ours, Pipeline
from pgcli.bench.plan import Lengths, Plan
from pgcli.bench.report import Limit, Report, Result, best, result, split
from pgcli.bench.roofline import Roof, Workload, limit
from pgcli.bench.theirs import Theirs
from pgcli.bench.work import Run, Shelf, Side, Work
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.engine.engine import Engine
from pgcli.engine.loader import load
from pgcli.errors import NoUsableDevice
from pgcli.proof import theirs
from pgcli.records import Item

#: Beyond so many pictures a run only takes longer, whatever the budget.
MOST_PICTURES = 1024
SMALL_BATCHES = (1, 8)

Waiting = Callable[[str], AbstractContextManager[None]]


def bench(
    checkpoint: Checkpoint,
    items: Iterator[Item],
    plan: Plan,
    *,
    device: str,
    dtype: str,
    pipeline: Pipeline,
    waiting: Waiting,
) -> Report:
    """Run both programs in turns on the same inputs; `pipeline` is this code's way with files.

    A batch for which there is no memory is left out, and said to be. Raises NoInputError where no
    picture can be read, NoUsableDevice where nothing fits, UsageError without transformers.
    """
    theirs.imported()
    with theirs.silence(), TemporaryDirectory() as scratch:
        with waiting("loading both programs"):
            engine = load(checkpoint, device=device, dtype=dtype, quantize=plan.quantize)
            exact = None
            if plan.quantize != "none":
                exact = load(checkpoint, device=device, dtype=dtype)
            bench = Bench(engine, exact, checkpoint.folder, items, plan, pipeline, Path(scratch))
        with waiting("measuring this machine"):
            before = bench.machine()
        for lengths in plan.lengths:
            for batch in bench.batch_sizes:
                with waiting(f"answers of {lengths} tokens, batches of {batch}"):
                    bench.measure(lengths, batch)
        with waiting("measuring this machine again"):  # it may have been busy before
            return bench.report(machine.best(before, bench.machine()))


class Bench:
    """Both programs loaded, and what was measured of them so far."""

    def __init__(
        self,
        engine: Engine,
        exact: Engine | None,
        folder: Path,
        items: Iterator[Item],
        plan: Plan,
        pipeline: Pipeline,
        scratch: Path,
    ):
        self.plan, self.scratch, self.engine = plan, scratch, engine
        self.batch_sizes = plan.batch_sizes or tuple(sorted({*SMALL_BATCHES, engine.batch_size}))
        self.shelf = Shelf(items, engine.spec, scratch)
        model, self.sharing = beside(engine, folder, max(self.batch_sizes))
        config = engine.model.config
        about = read_preprocessing(folder, config.vision.resolution)
        other = partial(Theirs, model, folder, config, about, vocabulary=engine.tokenizer.size)
        self.theirs = [other()]
        if engine.device.startswith("cuda"):  # where transformers compiles what a static cache lets
            self.theirs.append(other(static=True))
        self.sides: list[Side] = [Ours(engine, pipeline), *self.theirs]
        if exact is not None:
            self.sides[:1] = [
                Ours(engine, pipeline, name=f"pgcli, {plan.quantize}"),
                Ours(exact, pipeline, name=f"pgcli, {engine.dtype}"),
            ]
        self.results: list[tuple[Result, Sequence[Sequence[Run]]]] = []
        self.left_out: list[str] = []

    def machine(self) -> Machine:
        """What the machine can do at best, at the largest batch."""
        weight = self.engine.model.projector.weight
        return machine.measured(
            self.engine.model.config, max(self.batch_sizes), weight.device, weight.dtype
        )

    def measure(self, lengths: Lengths, batch: int) -> None:
        """All scopes at one length and batch size; the first two are two clocks on one run."""
        scopes = self.plan.scopes
        for together in ([s for s in scopes if s != "files"], [s for s in scopes if s == "files"]):
            if not together:
                continue
            try:
                runs = self._runs(lengths, batch, in_files=together == ["files"])
            except NoUsableDevice as problem:
                self.left_out.append(f"batches of {batch}: {problem}")
                continue
            names = [side.name for side in self.sides]
            for scope in together:
                self.results.append((result(scope, str(lengths), batch, names, runs), runs))

    def report(self, machine: Machine) -> Report:
        """All that was measured. Raises NoUsableDevice where that is nothing."""
        if not self.results:
            raise NoUsableDevice(self.left_out[-1], hint="--batch-size with smaller numbers")
        results = tuple(
            self._limited(one, runs, machine.roof) if one.scope == "device" else one
            for one, runs in self.results
        )
        return Report(
            device=self.engine.device,
            dtype=self.engine.dtype,
            torch=torch.__version__,
            transformers=version("transformers"),
            attention=self.theirs[0].attention,
            sharing=self.sharing,
            pictures=max(one.rows for one in results) // len(self.plan.prompts),
            prompts=self.plan.prompts,
            rounds=self.plan.rounds,
            machine=machine,
            results=results,
            best=best(results),
            left_out=tuple(self.left_out),
        )

    def _runs(self, lengths: Lengths, batch: int, *, in_files: bool) -> list[list[Run]]:
        """Every program's runs, after one batch of each that warms it up and tells its pace."""

        def acts(work: Work) -> list[Callable[[], Run]]:
            output = self.scratch / "rows.jsonl"
            return [
                partial(side.files, work, output) if in_files else partial(side.arrays, work)
                for side in self.sides
            ]

        prompts = len(self.plan.prompts)
        few = self._work(lengths, batch, -(-batch // prompts))
        seconds = sum(act().seconds for act in acts(few)) * batch / few.rows
        count = self.plan.pictures
        if count is None:
            batches = int(self._budget() / (self.plan.rounds * seconds))
            batches = max(1, min(batches, MOST_PICTURES // batch))
            count = -(-batches * batch // prompts)
        return in_turns(acts(self._work(lengths, batch, count)), self.plan.rounds)

    def _budget(self) -> float:
        """The seconds that one setting may take: each has the same."""
        kinds = len({scope == "files" for scope in self.plan.scopes})
        return self.plan.seconds / (kinds * len(self.plan.lengths) * len(self.batch_sizes))

    def _work(self, lengths: Lengths, batch: int, pictures: int) -> Work:
        looked, stored = self.shelf.first(pictures)
        question = tasks.ask(self.plan.prompts, max_new_tokens=lengths.most)
        ids = [self.engine.tokenizer.encode_prompt(prompt) for prompt in self.plan.prompts]
        drawn = lengths.of(len(looked) * len(ids))
        return Work(looked, stored, question, ids, drawn, batch)

    def _limited(self, found: Result, runs: Sequence[Sequence[Run]], roof: Roof) -> Result:
        """The result with its stages against the machine's limit."""
        work, config = self._workload(found, runs[0][-1]), self.engine.model.config
        least = limit(config, work, roof)
        untrimmed = limit(config, replace(work, trimmed=False), roof)
        names = [side.name for side in self.sides]
        return replace(
            found,
            splits=tuple(split(n, side, least) for n, side in zip(names, runs, strict=True)),
            limit=Limit(found.rows / least.total, least, untrimmed),
        )

    def _workload(self, found: Result, run: Run) -> Workload:
        prompt = max(len(self.engine.tokenizer.encode_prompt(one)) for one in self.plan.prompts)
        itemsize = self.engine.model.projector.weight.itemsize
        lengths = [len(tokens) for tokens in run.tokens]
        return Workload(found.batch_size, prompt, lengths, itemsize)
