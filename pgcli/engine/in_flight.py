"""Steps that were launched and whose tokens were not read yet; how their time is divided."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pgcli.device.stopwatch import Mark
from pgcli.engine.sampler import NextTokens
from pgcli.engine.sequence import Sequence

#: How many steps may be in flight when the tokens of a step are read, so that a GPU does not wait.
ASYNC_DEPTH = {"cuda": 1}


class InFlightStep(NamedTuple):
    """A step that was launched: its rows, its sampled tokens and its time marks."""

    rows: list[tuple[Sequence, int]]
    tokens: NextTokens
    start: Mark
    end: Mark
    is_prefill: bool


def runs_ahead(device: torch.device) -> bool:
    """Whether the device computes while the host goes on."""
    return device.type in ASYNC_DEPTH


def share_time(sequences: list[Sequence], milliseconds: float, *, is_prefill: bool) -> None:
    """Divide the time of a pass equally among its sequences."""
    for sequence in sequences:
        if is_prefill:
            sequence.prefill_ms += milliseconds / len(sequences)
        else:
            sequence.decode_ms += milliseconds / len(sequences)
