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
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.run.events import GracefulShutdown
from pgcli.training.answers import AnswerTask
from pgcli.training.classify import ClassifyTask
from pgcli.training.task import ImageBatch
from tests.support.tiny import randomised

VOCABULARY = 1915  # the built-in model's
SECOND_GENERATION: dict[str, Any] = {
    "attn_softcap": 5.0,
    "final_softcap": 3.0,
    "sliding_window": 8,
    "sliding_layers": (True, False),
    "post_norms": True,
}


def tiny_config(generation: int = 1, **decoder: Any) -> PaliGemmaConfig:
    """An image has four tokens."""
    more = SECOND_GENERATION if generation == 2 else {}
    return PaliGemmaConfig(
        VisionConfig(16, 1, 24, 2, patch_size=8, resolution=16),
        DecoderConfig(24, 2, 40, 2, 1, 12, VOCABULARY, **more | {"max_positions": 128} | decoder),
        image_token_id=VOCABULARY - 1,
    )


def write_checkpoint(folder: Path, *, generation: int = 1, **decoder: Any) -> Path:
    """Write a checkpoint."""
    model = randomised(PaliGemma(tiny_config(generation, **decoder)), dtype=torch.float32)
    save(model, folder, dtype=torch.float32)
    copy_files(BUILTIN, folder, TOKENIZER_FILES)
    return folder


COLOURS = {"red": (220, 30, 30), "green": (30, 170, 60), "blue": (40, 70, 220)}


def colour_of(number: int) -> str:
    """The colour of an image."""
    return [*COLOURS][number % len(COLOURS)]


def draw(file: Path, number: int) -> None:
    """Draw an image of one colour, in its own shade."""
    shade = tuple(min(255, value + number) for value in COLOURS[colour_of(number)])
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 16), shade).save(file)


def write_pairs(folder: Path, count: int = 12) -> Path:
    """A manifest of images with a text and a label each."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(count):
        draw(folder / "images" / f"{number:02}.png", number)
        colour = colour_of(number)
        row = {"image": f"images/{number:02}.png", "text": f"A {colour} wall.", "label": colour}
        lines.append(json.dumps(row))
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "pairs.jsonl"


def write_folders(folder: Path, count: int = 12) -> Path:
    """A folder with a folder of images for each label."""
    for number in range(count):
        draw(folder / colour_of(number) / f"{number:02}.png", number)
    return folder


def write_questions(folder: Path, count: int = 12, first: int = 0) -> Path:
    """A manifest of images with a prompt and an answer each, in PaliGemma's columns."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(first, first + count):
        draw(folder / "images" / f"{number:02}.png", number)
        colour, is_long = colour_of(number), number % 4 == 3
        row = {
            "image": f"images/{number:02}.png",
            "prefix": "what colour is it?" if is_long else "colour",
            "suffix": f"it is a {colour} wall" if is_long else colour,
        }
        lines.append(json.dumps(row))
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "questions.jsonl"


def metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of the metrics of a run."""
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def stop_after(monkeypatch: pytest.MonkeyPatch, updates: int) -> None:
    """End the next run after so many updates, like a signal."""
    left = iter(range(updates - 1))
    monkeypatch.setattr(GracefulShutdown, "should_stop", lambda self: next(left, None) is None)


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
