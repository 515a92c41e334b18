"""Common code of the benchmarks: options, 3b configurations, peak memory, alternating runs."""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import resource
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PR_SET_CHILD_SUBREAPER = 36  # Linux: orphaned processes become our children
VISION = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "vision_use_head": False,
}
TEXT: dict[int, dict[str, Any]] = {
    1: {
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "model_type": "gemma",
        "num_attention_heads": 8,
        "num_hidden_layers": 18,
        "num_key_value_heads": 1,
        "vocab_size": 257216,
    },
    2: {
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "model_type": "gemma2",
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "vocab_size": 257216,
        "eos_token_id": [1, 107],
    },
}


def options(documentation: str | None, **defaults: Any) -> argparse.Namespace:
    """A program's options: `rounds=5` is `--rounds N`, False a flag, a tuple the choices.

    The first choice is the default; a type stands for an optional option of that type.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=documentation, formatter_class=form)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        else:
            choices = default if isinstance(default, tuple) else None
            first = choices[0] if choices else default
            parser.add_argument(flag, type=type(first), choices=choices, default=first)
    return parser.parse_args()


def hub_config(
    generation: int,
    resolution: int = 224,
    text: Mapping[str, Any] | None = None,
    vision: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The sparse configuration of a 3b model as on the Hub, with some values replaced."""
    decoder = TEXT[generation] | dict(text or {})
    return {
        "architectures": ["PaliGemmaForConditionalGeneration"],
        "model_type": "paligemma",
        "eos_token_id": 1,
        "image_token_index": 257152,
        "projection_dim": decoder["hidden_size"],
        "text_config": decoder,
        "vision_config": VISION | {"image_size": resolution} | dict(vision or {}),
    }


def peak() -> int:
    """This process's peak resident memory, in bytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) * 1024


class Seconds(NamedTuple):
    """A process's wall time and processor time, including its children."""

    clock: float
    processor: float


def times_in_turns(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, list[Seconds]]:
    """The times of each command's runs, in alternating order; the first round is a warm-up."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    times: dict[str, list[Seconds]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name in commands if number % 2 else reversed(commands):
            seconds = timed(commands[name])
            if number:
                times[name].append(seconds)
    return times


def timed(command: Sequence[str]) -> Seconds:
    """The times of a process from its start to its end."""
    began, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env=environment, cwd=ROOT)
    seconds = perf_counter() - began
    with suppress(ChildProcessError):  # engines end after their command
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Seconds(round(seconds, 3), round(spent, 3))


def typical(times: Sequence[Seconds]) -> Seconds:
    """The medians of some times."""
    return Seconds(*map(median, zip(*times, strict=True)))
