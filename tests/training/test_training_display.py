"""What a person sees while a model learns: the display, and overfitting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pgcli.cli.run_command import RunOnScreen
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.progress import StageProgress
from pgcli.run.progress.events import Progress
from pgcli.training.metrics_file import OverfittingWatch
from pgcli.training.run import UpdateEvents, details

LINE = {"step": 5, "loss": 0.51234, "learning_rate": 2e-05, "gradient_norm": 0.8, "rows": 4,
        "tokens": 40, "rows_per_second": 31.24, "tokens_per_second": 1312.4, "wait_ms": 1.0,
        "memory_mb": 1500.0}  # fmt: skip
SAMPLE = {"id": "one.png", "prompt": "caption en", "answer": "two\nstars", "truth": "a star"}


def shown(*lines: Mapping[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    updates = UpdateEvents(RunOnScreen(Screen()), Progress(0))
    for line in lines:
        updates(line)
    return capsys.readouterr().err


def test_details_have_loss_rates_and_memory() -> None:
    assert details(LINE, [0.5, 0.7]) == (
        "loss 0.6, learning rate 2e-05, gradient norm 0.8, 1,312 tokens/s, 31.2 images/s, 1.5 GB"
    )
    skipped = LINE | {"loss": None, "gradient_norm": None, "rows_per_second": 0.0}
    assert details(skipped, []) == "learning rate 2e-05, 1,312 tokens/s, 0.0 images/s, 1.5 GB"
    progress = StageProgress("training", 10)
    progress.advance()
    progress.details = "loss 0.6"
    assert progress.line().endswith("left; loss 0.6")


def test_evaluation_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = LINE | {"eval_loss": 0.75, "eval_exact": 0.5, "samples": [SAMPLE]}
    assert shown(LINE, line, capsys=capsys).splitlines() == [
        "pgcli: step 5: loss 0.5123; evaluation: loss 0.75, exact 0.5"
    ]


def losses(*pairs: tuple[float, float]) -> list[dict[str, Any]]:
    """Lines of an update and an evaluation each, with a training and an evaluation loss."""
    return [LINE | {"loss": training, "eval_loss": found} for training, found in pairs]


def test_overfitting_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    rising = losses((1.0, 1.0), (0.9, 1.1), (0.8, 1.2), (0.7, 1.3), (0.6, 1.4))
    err = shown(*rising, capsys=capsys)
    assert err.count("overfits") == 1
    assert "risen 3 times in a row while the training loss fell" in err
    assert "--patience" in err
    noisy = losses((1.0, 1.0), (0.9, 1.1), (0.8, 1.2), (0.7, 1.0), (0.6, 1.1))
    diverging = losses((1.0, 1.0), (1.1, 1.1), (1.2, 1.2), (1.3, 1.3))
    assert "overfits" not in shown(*noisy, *diverging, capsys=capsys)
    watch = OverfittingWatch()
    skipped = {"step": 1, "loss": None}
    assert [watch.add(line) for line in [skipped, *rising]] == [False] * 4 + [True, False]
