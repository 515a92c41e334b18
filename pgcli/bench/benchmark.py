"""Runs a benchmark: both programs on one checkpoint, and the machine's limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from pgcli import tasks
from pgcli.bench import peak_rates
from pgcli.bench.bench_images import BenchImages
from pgcli.bench.engine_runner import EngineRunner
from pgcli.bench.measure import in_turns
from pgcli.bench.peak_rates import MachineRates
from pgcli.bench.reference_model import load_or_share
from pgcli.bench.reference_runner import ReferenceRunner
from pgcli.bench.report import BenchReport, BenchResult, SpeedLimit, best, result, split
from pgcli.bench.roofline import PeakRates, Workload, limit
from pgcli.bench.runner import BenchInputs, BenchRun, Runner
from pgcli.bench.settings import BenchPlan, Lengths
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import load
from pgcli.errors import NoUsableDevice
from pgcli.proof import reference
from pgcli.proof.report import Waiting
from pgcli.records import Item

MAX_IMAGES = 1024  # of a run, whatever its time
SMALL_BATCHES = (1, 8)


def bench(
    checkpoint: Checkpoint,
    items: Iterator[Item],
    plan: BenchPlan,
    *,
    device: str,
    dtype: str,
    waiting: Waiting,
) -> BenchReport:
    """Run both programs in turns on the same inputs.

    Batches that do not fit into memory are skipped and reported. Raises NoInputError if no image
    can be read, NoUsableDevice if no batch fits, UsageError without transformers.
    """
    reference.import_transformers()
    with reference.quiet_transformers(), TemporaryDirectory() as scratch:
        with waiting("loading both programs"):
            engine = load(checkpoint, device=device, dtype=dtype, quantize=plan.quantize)
            exact = None
            if plan.quantize != "none":
                exact = load(checkpoint, device=device, dtype=dtype)
            bench = Bench(engine, exact, checkpoint.folder, items, plan, Path(scratch))
        with waiting("measuring this machine"):
            before = bench.machine()
        for lengths in plan.lengths:
            for batch in bench.batch_sizes:
                with waiting(f"answers of {lengths} tokens, batches of {batch}"):
                    bench.measure(lengths, batch)
        with waiting("measuring this machine again"):  # it may have been under load before
            return bench.report(peak_rates.highest_rates(before, bench.machine()))


class Bench:
    """Both programs loaded, and their results so far."""

    def __init__(
        self,
        engine: InferenceEngine,
        exact: InferenceEngine | None,
        folder: Path,
        items: Iterator[Item],
        plan: BenchPlan,
        scratch: Path,
    ):
        self.plan, self.scratch, self.engine = plan, scratch, engine
        self.batch_sizes = plan.batch_sizes or tuple(sorted({*SMALL_BATCHES, engine.batch_size}))
        self.pool = BenchImages(items, engine.spec, scratch)
        model, self.sharing = load_or_share(engine, folder, max(self.batch_sizes))
        config = engine.model.config
        about = read_preprocessing(folder, config.vision.resolution)
        other = partial(
            ReferenceRunner, model, folder, config, about, vocabulary=engine.tokenizer.size
        )
        self.references = [other()]
        if engine.device.startswith("cuda"):  # where transformers compiles what a static cache lets
            self.references.append(other(static=True))
        self.runners: list[Runner] = [EngineRunner(engine), *self.references]
        if exact is not None:
            self.runners[:1] = [
                EngineRunner(engine, name=f"pgcli, {plan.quantize}"),
                EngineRunner(exact, name=f"pgcli, {engine.dtype}"),
            ]
        self.results: list[tuple[BenchResult, Sequence[Sequence[BenchRun]]]] = []
        self.left_out: list[str] = []

    def machine(self) -> MachineRates:
        """The machine's peak rates for the largest batch."""
        weight = self.engine.model.projector.weight
        return peak_rates.measure_rates(
            self.engine.model.config, max(self.batch_sizes), weight.device, weight.dtype
        )

    def measure(self, lengths: Lengths, batch: int) -> None:
        """All scopes at one length and batch size; `device` and `arrays` share their runs."""
        scopes = self.plan.scopes
        for together in ([s for s in scopes if s != "files"], [s for s in scopes if s == "files"]):
            if not together:
                continue
            try:
                runs = self._runs(lengths, batch, in_files=together == ["files"])
            except NoUsableDevice as problem:
                self.left_out.append(f"batches of {batch}: {problem}")
                continue
            names = [one.name for one in self.runners]
            for scope in together:
                self.results.append((result(scope, str(lengths), batch, names, runs), runs))

    def report(self, machine: MachineRates) -> BenchReport:
        """The report of all results. Raises NoUsableDevice if there are none."""
        if not self.results:
            raise NoUsableDevice(self.left_out[-1], hint="--batch-size with smaller numbers")
        results = tuple(
            self._limited(one, runs, machine.peak) if one.scope == "device" else one
            for one, runs in self.results
        )
        return BenchReport(
            device=self.engine.device,
            dtype=self.engine.dtype,
            torch=torch.__version__,
            transformers=version("transformers"),
            attention=self.references[0].attention,
            sharing=self.sharing,
            images=max(one.rows for one in results) // len(self.plan.prompts),
            prompts=self.plan.prompts,
            rounds=self.plan.rounds,
            machine=machine,
            results=results,
            best=best(results),
            left_out=tuple(self.left_out),
        )

    def _runs(self, lengths: Lengths, batch: int, *, in_files: bool) -> list[list[BenchRun]]:
        """Every program's runs, after a warm-up batch from which the number of images follows."""

        def acts(inputs: BenchInputs) -> list[Callable[[], BenchRun]]:
            output = self.scratch / "rows.jsonl"
            return [
                partial(one.run_files, inputs, output)
                if in_files
                else partial(one.run_arrays, inputs)
                for one in self.runners
            ]

        prompts = len(self.plan.prompts)
        warm_up = self._inputs(lengths, batch, -(-batch // prompts))
        seconds = sum(act().seconds for act in acts(warm_up)) * batch / warm_up.rows
        count = self.plan.images
        if count is None:
            batches = int(self._budget() / (self.plan.rounds * seconds))
            batches = max(1, min(batches, MAX_IMAGES // batch))
            count = -(-batches * batch // prompts)
        return in_turns(acts(self._inputs(lengths, batch, count)), self.plan.rounds)

    def _budget(self) -> float:
        """The seconds for each setting."""
        kinds = len({scope == "files" for scope in self.plan.scopes})
        return self.plan.seconds / (kinds * len(self.plan.lengths) * len(self.batch_sizes))

    def _inputs(self, lengths: Lengths, batch: int, count: int) -> BenchInputs:
        images, files = self.pool.first(count)
        question = tasks.ask(self.plan.prompts, max_new_tokens=lengths.most)
        ids = [self.engine.tokenizer.encode_prompt(prompt) for prompt in self.plan.prompts]
        row_lengths = lengths.of(len(images) * len(ids))
        return BenchInputs(images, files, question, ids, row_lengths, batch)

    def _limited(
        self, found: BenchResult, runs: Sequence[Sequence[BenchRun]], rates: PeakRates
    ) -> BenchResult:
        """The result with its stages and the machine's limit."""
        work, config = self._workload(found, runs[0][-1]), self.engine.model.config
        least = limit(config, work, rates)
        untrimmed = limit(config, replace(work, trimmed=False), rates)
        names = [one.name for one in self.runners]
        return replace(
            found,
            splits=tuple(split(n, of_one, least) for n, of_one in zip(names, runs, strict=True)),
            limit=SpeedLimit(found.rows / least.total, least, untrimmed),
        )

    def _workload(self, found: BenchResult, run: BenchRun) -> Workload:
        prompt = max(len(self.engine.tokenizer.encode_prompt(one)) for one in self.plan.prompts)
        itemsize = self.engine.model.projector.weight.itemsize
        lengths = [len(tokens) for tokens in run.tokens]
        return Workload(found.batch_size, prompt, lengths, itemsize)
