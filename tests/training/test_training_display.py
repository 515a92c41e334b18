"""What a person sees while a model learns."""

from __future__ import annotations

from pgcli.cli.ui.progress import StageProgress
from pgcli.training.run import details, evaluation_line

LINE = {"step": 5, "loss": 0.51234, "learning_rate": 2e-05, "gradient_norm": 0.8, "rows": 4,
        "tokens": 40, "rows_per_second": 31.24, "tokens_per_second": 1312.4, "wait_ms": 1.0,
        "memory_mb": 1500.0}  # fmt: skip
SAMPLE = {"id": "one.png", "prompt": "caption en", "answer": "two\nstars", "truth": "a star"}


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


def test_evaluation_is_one_line() -> None:
    line = LINE | {"eval_loss": 0.75, "eval_exact": 0.5, "samples": [SAMPLE]}
    assert evaluation_line(line) == "step 5: loss 0.5123; evaluation: loss 0.75, exact 0.5"
