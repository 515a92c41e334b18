"""Runs with an engine that only counts, in processes that tests disturb: the kinds, and one run."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.compute
import pyarrow.csv
import pyarrow.pandas_compat  # imported here, and not in each fork
import pyarrow.parquet
from PIL import Image

import pgcli.images.pool
import pgcli.run.model
import pgcli.run.run
import pgcli.run.state.record
import pgcli.run.workers.engine_process
import pgcli.run.workers.engines
from pgcli.checkpoints.config import read_image_spec
from pgcli.checkpoints.find import find
from pgcli.cli.main import output_failed
from pgcli.errors import PgcliError
from pgcli.output.reader import indexed_rows
from pgcli.records import Answer, DecodedImage, unanswered
from pgcli.run import events
from pgcli.run.request import make_request
from pgcli.run.run import exit_code, run
from pgcli.run.state.record import versions
from tests.support import pretend
from tests.support.forkserver import ForkedRun
from tests.support.power_loss import CALLS

HELD = 4  # the least number of answers that the model holds back
pgcli.run.state.record.version = cache(pgcli.run.state.record.version)
versions()  # reads package metadata once for all forks
pyarrow.compute.fill_null(pyarrow.array([None, 1]), 0)  # initialises pyarrow.compute
DEMO = find("demo")
SPEC = read_image_spec(DEMO.folder)


class StubEngine(pretend.Engine):
    """Answers with the image's name, in random order, and holds a few answers back.

    An image with `kills` in its name ends the process, with `once` only the first time.
    """

    spec, batch_size, label = SPEC, 4, DEMO.label
    embedding_dim, kind = None, "paligemma"

    def __init__(self, seconds: float = 0.0, seed: int = 0):
        self._seconds, self._rng = seconds, random.Random(seed)

    def loaded(self, request: Any, checkpoint: Any, *_: object) -> StubEngine:
        """This engine, with the model's name in its rows."""
        self.label = checkpoint.label
        if request.model.dtype != "auto":
            self.dtype = request.model.dtype
        return self

    def ask(
        self,
        stream: Iterable[tuple[int, DecodedImage]],
        question: Any,
        sampling: Any,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Answer]]:
        held: list[tuple[int, Answer]] = []
        for first, image in stream:
            time.sleep(self._seconds)
            if "kills" in image.item.id and is_met_first(image.item.id):
                os.kill(os.getpid(), signal.SIGKILL)
            for number, prompt in enumerate(image.item.prompts, first):
                row = unanswered(image, prompt, task=question.task, model=self.label)
                text = f"«{image.item.id}»\u2028 {prompt}" * (1 + image.item.index % 3)
                held.append((number, replace(row, answer=text, tokens=3, finish="stop")))
                note(number)
            while len(held) > HELD:
                yield held.pop(self._rng.randrange(len(held)))
        self._rng.shuffle(held)
        yield from held


def note(row: int) -> None:
    """Append the row to the file of all computed rows, if there is one."""
    try:
        descriptor = os.open("../computed", os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        return
    os.write(descriptor, b"%d\n" % row)
    os.close(descriptor)


def is_met_first(name: str) -> bool:
    """Whether to end the process: always, or the first time for a name with `once`."""
    marker = Path(f"../met {Path(name).name}")
    is_first = not marker.exists()
    marker.touch()
    return is_first or "once" not in name


def make_images(folder: Path, count: int, *, broken: Sequence[int] = (), start: int = 0) -> Path:
    """A folder of small images of different sizes, some of them not images."""
    folder.mkdir(exist_ok=True)
    for number in range(start, start + count):
        file = folder / f"{number:03}.png"
        if number in broken:
            file.write_bytes(b"no image")
        else:
            Image.new("RGB", (8, 8 + number % 7)).save(file)
        os.utime(file, ns=(10**18, 10**18))
    return folder


def start(
    folder: Path,
    output: str,
    sources: Sequence[str] = ("../images",),
    *,
    run: Callable[..., int] | None = None,
    **options: Any,
) -> ForkedRun:
    """Start a run in this folder, in its own process. For the options see `run_here`.

    Functions among the options are pickled, so they must be module functions or partials of them.
    """
    call = pickle.dumps(partial(run or run_here, output, sources, **options))
    said = os.open(folder.parent / "said", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with open(said, "wb") as log:
        return ForkedRun([call.hex()], env=os.environ, cwd=folder, stderr=log, kind="stub")


def main() -> int:
    """Run in the fork with the arguments of `start`."""
    return pickle.loads(bytes.fromhex(sys.argv[1]))()


def run_here(
    output: str,
    sources: Sequence[str] = ("../images",),
    *,
    command: str = "ask",
    seconds: float = 0.0,
    seed: int | None = None,
    before: Callable[[], object] = lambda: None,
    hooks: Sequence[Any] = (),
    syncs: bool = False,
    **options: Any,
) -> int:
    """Run in this process, which is a fork, and return the command's exit code.

    An image takes `seconds`; `before` is called before the run. Engines are forks too.
    """
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    replace_model(seconds, seed)
    fork = multiprocessing.get_context("fork")
    pgcli.run.workers.engines.start_method = lambda slots: fork  # type: ignore[assignment]
    if not syncs:
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
    values = {"model": "demo", "workers": 0, "no_timing": True, "output": output, **options}
    if command == "ask":
        values.setdefault("prompt", ("a", "b"))
    try:
        request = make_request(command, sources, values)
        before()
        return run(request, said, hooks).exit_code
    except (PgcliError, OSError) as problem:
        error = output_failed(problem) if isinstance(problem, OSError) else problem
        if error is None:
            raise
        sys.stderr.write(f"{error}\n  {error.hint}\n")
        return error.exit_code
    except pgcli.run.run.Interrupted as problem:
        return exit_code(problem)


def replace_model(seconds: float, seed: int | None = None) -> None:
    """Have this process answer with a function instead of a model."""
    engine = StubEngine(seconds, os.getpid() if seed is None else seed)
    modules: dict[str, Any] = sys.modules  # modules that take seconds to import
    modules["pgcli.engine.sampler"] = SimpleNamespace(SamplingParams=lambda *_, **__: None)
    modules["torch"] = SimpleNamespace(set_num_threads=lambda threads: None)
    pgcli.run.model.load_engine = engine.loaded  # type: ignore[assignment]


def said(event: events.Event) -> None:
    """Write messages to standard error."""
    if isinstance(event, events.Message):
        sys.stderr.write(f"{event.text}\n")


def finish(folder: Path, output: str, *given: Any, **options: Any) -> tuple[int, str]:
    """Run in a separate process; return the exit code and the messages."""
    log = folder.parent / "said"
    size = log.stat().st_size if log.exists() else 0
    code = start(folder, output, *given, **options).wait()
    return code, log.read_bytes()[size:].decode()


def rows_of(folder: Path, output: str) -> list[str]:
    """The saved rows of an output of any form."""
    path = folder / output.rstrip("/")
    return [json.dumps(row, sort_keys=True) for _, row in indexed_rows(path) if row is not None]


class Calls:
    """Acts before the `number`-th call that changes the disk, in a fork.

    With `in_engines`, the calls of each engine process are counted separately.
    """

    def __init__(
        self,
        number: int,
        action: Callable[[str], object],
        *,
        names: Sequence[str] = CALLS,
        in_engines: bool = False,
    ):
        self.number, self.action, self.names = number, action, names
        self.in_engines, self.count, self.main = in_engines, 0, 0

    def __call__(self) -> None:
        self.main = os.getpid()
        for name in self.names:
            setattr(os, name, self._over(name, getattr(os, name)))

    def _over(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            is_engine = os.getpid() != self.main
            if is_engine != self.in_engines:
                return real(*given, **more)
            if is_engine and self.main > 0 and getattr(self, "pid", 0) != os.getpid():
                self.pid, self.count = os.getpid(), 0
            self.count += 1
            if self.is_reached():
                self.action(name)
            return real(*given, **more)

        return call

    def is_reached(self) -> bool:
        """Whether to act before this call."""
        return self.count == self.number


def die(name: str) -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


IMAGES, BROKEN = 10, (3, 4)


def kinds(rows_per_file: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """The output and the options of each kind of run."""
    folder = {"rows_per_file": rows_per_file}
    return {
        "lines": ("rows.jsonl", {}),
        "parquet": ("rows.parquet", {}),
        "folder": ("rows/", folder),
        "shard": ("rows/", {"shard": "0/1", **folder}),
        "lines of engines": ("rows.jsonl", {"engines": 2}),
        "parquet of engines": ("rows.parquet", {"engines": 2}),
        "folder of engines": ("rows/", {"engines": 2, **folder}),
    }


KINDS = kinds(6)


def fresh(images: Path, name: str) -> Path:
    """A new folder beside the images."""
    folder = images / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def whole(images: Path, kind: str, code: int = 3) -> list[str]:
    """The rows of an undisturbed run, which ends with this exit code."""
    output, options = KINDS[kind]
    folder = fresh(images, "whole")
    assert finish(folder, output, **options)[0] == code
    return rows_of(folder, output)
