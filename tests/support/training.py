"""Training: a tiny PaliGemma with the built-in tokenizer, rows of drawings, processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from PIL import Image

from pgcli.checkpoints.files import TOKENIZER_FILES
from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.save import copy_files, save
from pgcli.cli.main import main
from pgcli.errors import NoUsableDevice, PgcliError, TooManyErrors
from pgcli.run.progress.shutdown import GracefulShutdown
from pgcli.training.answers import AnswerTask
from pgcli.training.classify import ClassifyTask
from pgcli.training.task import ImageBatch


class Command(NamedTuple):
    """The words of a command line, and an event in the last process."""

    words: str
    event: str = ""


class Outcome(NamedTuple):
    """The exit code of each process, and its stderr."""

    codes: list[int]
    messages: list[str]


def run_in_processes(commands: Sequence[Command], folder: Path, count: int = 2) -> list[Outcome]:
    """The results of the command lines, which all processes run one after another in the folder.

    This process holds their stores, like torchrun.
    """
    stores = [
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in commands
    ]
    ports = [store.port for store in stores]
    mp.spawn(_process, args=(count, ports, commands, folder), nprocs=count)
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]
    return [Outcome(*map(list, zip(*each, strict=True))) for each in zip(*found, strict=True)]


def _process(
    rank: int, count: int, ports: Sequence[int], commands: Sequence[Command], folder: Path
) -> None:
    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{count}"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    found = []
    for port, (words, event) in zip(ports, commands, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        stderr = StringIO()
        happens = EVENTS[event] if rank == count - 1 else EVENTS[""]
        with redirect_stderr(stderr), happens():
            code = main(words.split())
        found.append((code, stderr.getvalue()))
        Path(f"{rank}.json").write_text(json.dumps(found))
        if dist.is_initialized() and "memory" not in event:
            dist.destroy_process_group()


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def stop_after_an_update() -> Iterator[None]:
    with patch.object(GracefulShutdown, "should_stop", lambda self: True):
        yield


def failing(method: str, error: PgcliError, calls: int) -> Callable[[], Any]:
    """A method of the task that fails after so many calls."""
    original = getattr(ClassifyTask, method)
    left = iter(range(calls))

    def fails(self: ClassifyTask, *args: Any) -> Any:
        if next(left, None) is None:
            raise error
        return original(self, *args)

    return lambda: patch.object(ClassifyTask, method, fails)


def failing_data() -> Any:
    """The second batch is unreadable."""
    original = ClassifyTask.batches

    def batches(self: ClassifyTask, *args: int) -> Iterator[ImageBatch]:
        yield next(original(self, *args))
        raise TooManyErrors("the images are gone", hint="bring them back")

    return patch.object(ClassifyTask, "batches", batches)


@contextmanager
def out_of_memory() -> Iterator[None]:
    """From the second update on, memory is too small for two rows."""
    loss, first = AnswerTask._loss, iter([True])

    def failing_loss(self: AnswerTask, batch: Any) -> Any:
        if len(batch.rows) > 1 and next(first, None) is None:
            raise torch.OutOfMemoryError("no memory")
        return loss(self, batch)

    with patch.object(AnswerTask, "_loss", failing_loss):
        yield


EVENTS: dict[str, Callable[[], Any]] = {
    "": nothing,
    "stop": stop_after_an_update,
    "no data": failing_data,
    "out of memory": out_of_memory,
    "no memory": failing("loss", NoUsableDevice("no memory is left", hint="free some"), 1),
}
