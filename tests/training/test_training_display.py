"""What a person sees while a model learns: the display, overfitting, and TensorBoard's files."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pgcli.cli.training.display import TrainingDisplay, details
from pgcli.cli.training.tensorboard import events_observer
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.progress import StageProgress
from pgcli.training.event_file import checksum, crc32c
from pgcli.training.overfitting import OverfittingWatch

LINE = {"step": 5, "loss": 0.51234, "learning_rate": 2e-05, "gradient_norm": 0.8, "rows": 4,
        "tokens": 40, "rows_per_second": 31.24, "tokens_per_second": 1312.4, "wait_ms": 1.0,
        "memory_mb": 1500.0}  # fmt: skip
SAMPLE = {"id": "one.png", "prompt": "caption en", "answer": "two\nstars", "truth": "a star"}


def shown(*lines: Mapping[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    display = TrainingDisplay(Screen(), StageProgress("training", 10), OverfittingWatch())
    for line in lines:
        display.update(line)
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


def test_evaluation_shows_answers_beside_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    right = SAMPLE | {"answer": "a star"}
    line = LINE | {"eval_loss": 0.75, "eval_exact": 0.5, "samples": [SAMPLE, right] * 3}
    assert shown(LINE, line, capsys=capsys).splitlines() == [
        "pgcli: step 5: loss 0.5123; evaluation: loss 0.75, exact 0.5",
        *[
            'pgcli: one.png, caption en: "two stars", the true answer is "a star"',
            'pgcli: one.png, caption en: "a star", which is right',
        ]
        * 2,
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


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of Protocol Buffers: number and value."""

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    at = 0
    while at < len(message):
        key = varint()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if size is None:
            size = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        data = message[at : at + size]
        at += size
        plain = {1: "<d", 5: "<f"}.get(key & 7)
        yield key >> 3, struct.unpack(plain, data)[0] if plain else data


def events(folder: Path) -> list[dict[int, Any]]:
    (file,) = (folder / "tensorboard").iterdir()
    data, found = file.read_bytes(), []
    while data:
        size = struct.unpack("<Q", data[:8])[0]
        event = data[12 : 12 + size]
        assert data[8:12] == checksum(data[:8])
        assert data[12 + size : 16 + size] == checksum(event)
        found.append(dict(fields(event)))
        data = data[16 + size :]
    return found


def test_tensorboard_files_have_the_metrics(tmp_path: Path) -> None:
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(range(32)) == 0x46DD794E
    with events_observer(tmp_path, step=300) as observe:
        observe(LINE | {"step": 301, "loss": None, "eval_loss": 0.25, "samples": [SAMPLE]})
    version, start, metrics = events(tmp_path)
    assert version[3] == b"brain.Event:2"
    assert (start[2], dict(fields(start[7]))) == (301, {1: 1})
    assert metrics[2] == 301
    values = {value[1]: value[2] for value in (dict(fields(one)) for _, one in fields(metrics[5]))}
    assert values[b"eval/loss"] == 0.25
    assert values[b"train/gradient_norm"] == pytest.approx(0.8)
    assert {b"train/loss", b"train/step", b"train/samples"}.isdisjoint(values)
