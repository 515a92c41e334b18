"""Runs a benchmark: both programs alternate on one checkpoint; measures the machine's limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from pgcli import tasks
from pgcli.bench import roofline
from pgcli.bench.report import BenchReport, compare_programs, in_turns, stage_times
from pgcli.bench.roofline import Workload, limit
from pgcli.bench.runners import BenchInputs, BenchRun, EngineRunner, ReferenceRunner, Runner
from pgcli.checkpoints.config import image_preprocessing, read_description
from pgcli.checkpoints.find import Checkpoint
from pgcli.device.machine import decoding_processes
from pgcli.device.select import free_bytes
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import open_engine
from pgcli.engine.memory import batch_bytes, parameters
from pgcli.errors import NoInputError, NoUsableDevice
from pgcli.images import ImageDecoder, ImageSpec
from pgcli.images.pool import decode_ahead
from pgcli.records import DecodedImage, Item
from pgcli.text import byte_count
from pgcli.verify import reference
from pgcli.verify.verify import Waiting

SECONDS = 25.0  # for all runs except warm-up; runs on a GPU may take longer
ROUNDS = 5  # runs of each program, which alternate
MAX_IMAGES = 8192  # for a run of any duration
#: Distinct images of a run; more rows repeat them, because decoding photographs is slow.
MAX_DIFFERENT = 1024
#: The least number of batches of a run on a GPU, and of runs of each program: a batch takes less
#: than a second there, and the first and last batches of a run are slower than the others.
GPU_BATCHES, GPU_ROUNDS = 8, 2
PROMPT = "caption en"
TOKENS = 16  # of each answer


def bench(
    checkpoint: Checkpoint,
    items: Iterator[Item],
    *,
    batch_size: int | None,
    quantize: str,
    fast_decode: bool,
    device: str,
    dtype: str,
    waiting: Waiting,
) -> BenchReport:
    """Run both programs alternately on the same images and the same decoded pixels.

    Without a `batch_size` it is the automatic one of runs. With `fast_decode` pgcli decodes files
    at a reduced size. Raises NoInputError if no image can be read, NoUsableDevice for too little
    memory, UsageError without transformers.
    """
    reference.import_transformers()
    with reference.quiet_transformers(), TemporaryDirectory() as scratch:
        with waiting("loading both programs"):
            engine = open_engine(
                checkpoint, device=device, dtype=dtype, quantize=quantize, batch_size=batch_size
            )
            check_memory(engine)
            bench = Bench(engine, checkpoint.folder, items, Path(scratch), fast_decode=fast_decode)
        with waiting(f"answers of {TOKENS} tokens, batches of {engine.batch_size}"):
            model = bench.runs(in_files=False)
            files = bench.runs(in_files=True)
        with waiting("measuring this machine"):
            return bench.report(files, model)


def check_memory(engine: InferenceEngine) -> None:
    """Raise NoUsableDevice if there is no room for transformers' copy of the weights and a batch.

    The engine's weights are already loaded.
    """
    weight, config = engine.model.projector.weight, engine.model.config
    batch = batch_bytes(config, weight.itemsize, engine.batch_size, device=weight.device.type)
    needed = parameters(config) * weight.itemsize + batch
    if needed > (free := free_bytes(weight.device)):
        raise NoUsableDevice(
            f"transformers needs {byte_count(needed)} for its own weights and a batch of "
            f"{engine.batch_size}, and {weight.device} has {byte_count(free)} free",
            hint="a smaller --batch-size, or a larger machine",
        )


def run_length(batch_seconds: float, batch: int, device: str) -> tuple[int, int]:
    """The batches of a run, and the runs of each program, for half of SECONDS.

    `batch_seconds` has the time of one batch in each program.
    """
    is_gpu, seconds = device.startswith("cuda"), SECONDS / 2
    least = GPU_BATCHES if is_gpu else 1
    batches = max(least, int(seconds / (ROUNDS * batch_seconds)))
    batches = max(1, min(batches, MAX_IMAGES // batch))
    if not is_gpu:
        return batches, ROUNDS
    return batches, max(GPU_ROUNDS, min(ROUNDS, round(seconds / (batches * batch_seconds))))


class Bench:
    """Both programs, with their models loaded."""

    def __init__(
        self,
        engine: InferenceEngine,
        folder: Path,
        items: Iterator[Item],
        scratch: Path,
        *,
        fast_decode: bool,
    ):
        self._scratch, self._engine, self._fast_decode = scratch, engine, fast_decode
        self._images = BenchImages(items, engine.spec, scratch, engine.device)
        config, weight = engine.model.config, engine.model.projector.weight
        make_reference = partial(
            ReferenceRunner,
            reference.load_reference(
                folder, weight.dtype, weight.device, reference.class_name(config)
            ),
            folder,
            config,
            image_preprocessing(folder, read_description(folder)),
            vocabulary=engine.tokenizer.size,
        )
        self._reference = make_reference()
        self._runners: list[Runner] = [EngineRunner(engine), self._reference]
        if weight.device.type == "cuda":  # transformers compiles decoding with a static cache
            self._runners.append(make_reference(static=True))

    def runs(self, *, in_files: bool) -> list[list[BenchRun]]:
        """Every program's runs, after a warm-up batch that determines the number of images.

        On a GPU an extra warm-up batch before it compiles and records kernels.
        """
        batch, device = self._engine.batch_size, self._engine.device
        warm_up = self._inputs(batch)
        for _ in range(2 if device.startswith("cuda") else 1):
            runs = [act() for act in self._acts(warm_up, in_files)]
        spent = sum(run.clock_seconds for run in runs) * batch / len(warm_up.images)
        batches, rounds = run_length(spent, batch, device)
        return in_turns(self._acts(self._inputs(batches * batch), in_files), rounds)

    def report(
        self, files: Sequence[Sequence[BenchRun]], model: Sequence[Sequence[BenchRun]]
    ) -> BenchReport:
        """The report on the runs of all programs; measures this machine's rates."""
        engine, names = self._engine, [runner.name for runner in self._runners]
        config, weight = engine.model.config, engine.model.projector.weight
        machine = roofline.measure_rates(config, engine.batch_size, weight.device, weight.dtype)
        prompt = len(engine.tokenizer.encode_head()) + len(engine.tokenizer.encode_prompt(PROMPT))
        lengths = [len(tokens) for tokens in model[0][-1].tokens]
        work = Workload(engine.batch_size, prompt, lengths, weight.itemsize)
        least = limit(config, work, machine.peak)
        return BenchReport(
            device=engine.device,
            dtype=engine.dtype,
            torch=torch.__version__,
            transformers=version("transformers"),
            attention=self._reference.attention,
            batch_size=engine.batch_size,
            answers=f"{TOKENS} tokens",
            machine=machine,
            files=compare_programs(names, files),
            model=compare_programs(names, model),
            stages=tuple(
                stage_times(name, runs, least) for name, runs in zip(names, model, strict=True)
            ),
            limit=least,
        )

    def _acts(self, inputs: BenchInputs, in_files: bool) -> list[Callable[[], BenchRun]]:
        output = self._scratch / "rows.jsonl"
        return [
            partial(runner.run_files, inputs, output)
            if in_files
            else partial(runner.run_arrays, inputs)
            for runner in self._runners
        ]

    def _inputs(self, count: int) -> BenchInputs:
        """Inputs of `count` rows; if images are too few, a CPU measures fewer rows."""
        engine, is_gpu = self._engine, self._engine.device.startswith("cuda")
        images, files = self._images.first(min(count, MAX_DIFFERENT))
        if is_gpu or len(images) == MAX_DIFFERENT:
            repeats = -(-count // len(images))
            images, files = (images * repeats)[:count], (files * repeats)[:count]
        return BenchInputs(
            images,
            files,
            tasks.ask((PROMPT,), max_new_tokens=TOKENS),
            head_ids=engine.tokenizer.encode_head(),
            prompt_ids=engine.tokenizer.encode_prompt(PROMPT),
            lengths=(TOKENS,) * len(images),
            batch=engine.batch_size,
            fast_decode=self._fast_decode,
        )


class BenchImages:
    """Decoded images and their files; an image without a file is written to `folder`.

    They are decoded as for a model on the `device`: a photograph takes a tenth of a second.
    """

    def __init__(self, items: Iterator[Item], spec: ImageSpec, folder: Path, device: str = "cpu"):
        self._items, self._spec, self._folder = enumerate(items), spec, folder
        self._workers = decoding_processes(device)
        self._images: list[DecodedImage] = []

    def first(self, count: int) -> tuple[list[DecodedImage], list[Path]]:
        """The first `count` readable images and their files, or fewer if there are no more.

        Raises NoInputError if no image can be read.
        """
        while items := [*islice(self._items, max(0, count - len(self._images)))]:
            decoded = decode_ahead(
                [self._in_file(number, item) for number, item in items],
                ImageDecoder(self._spec),
                workers=None,
                total=len(items),
                default_workers=self._workers,
            )
            with closing(decoded):
                images = [image for image in decoded if image is not None]
            self._images += [image for image in images if image.fault is None]
        if not self._images:
            raise NoInputError(
                "no readable image to measure with",
                hint="drop --source to measure with generated images",
            )
        images = self._images[:count]
        return images, [Path(image.item.path or "") for image in images]

    def _in_file(self, number: int, item: Item) -> Item:
        if item.path is not None:
            return item
        file = self._folder / f"{number:05}.png"
        file.write_bytes(item.data or b"")
        return replace(item, path=str(file), data=None)
