"""Compares a LoRA update with transformers and PEFT: seconds and peak memory.

    python benchmarks/lora_step.py --folder runs/3b            # 3b, random bfloat16 weights

The checkpoint is written unless it exists. Each side has its own process, in the order A B B A:
pgcli with `answer_loss` and adapters, transformers with PEFT. Both train the same adapters (rank 8,
float32, written by the first process) over frozen weights, on the same rows: noise as images,
random prompts, answers of two lengths. An update is the vision tower, the decoder, the loss of the
answers' tokens, the backward pass, clipping and AdamW; both use gradient checkpointing, or neither
with --no-checkpointing.

Prints one JSON object: for each side the median time of an update after the first, wall and
processor time, the peak resident memory, and the losses, which differ only by rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.full_size import make
from benchmarks.measure import ROOT, options, peak

SIDES = ("pgcli", "transformers", "transformers", "pgcli")
LEARNING_RATE, MAX_NORM = 1e-4, 1.0
PROMPT_TOKENS, ANSWER_TOKENS = 8, (16, 24)  # answers of even and odd rows


@dataclass(frozen=True)
class Rows:
    """The rows of an update: pixels (B, C, R, R), prompts with newline, answers with stop token."""

    pixels: Any
    prompts: list[list[int]]
    answers: list[list[int]]

    @classmethod
    def random(cls, rows: int, resolution: int, newline: int) -> Rows:
        import torch

        numbers = np.random.default_rng(0)
        prompts = [
            [2, *numbers.integers(10, 200, PROMPT_TOKENS).tolist(), newline] for _ in range(rows)
        ]
        answers = [
            [*numbers.integers(10, 200, ANSWER_TOKENS[row % 2]).tolist(), 1] for row in range(rows)
        ]
        pixels = numbers.standard_normal((rows, 3, resolution, resolution), dtype=np.float32)
        return cls(torch.from_numpy(pixels), prompts, answers)


def main() -> None:
    args = options(
        __doc__,
        folder=Path("runs/3b"),
        generation=(1, 2),
        dtype=("bfloat16", "float32"),
        targets="attention",
        rows=1,  # in an update
        micro_batch=1,
        steps=2,  # of each run, after the first
        no_checkpointing=False,
        side=str,  # set in the measured process
    )
    if args.side:
        json.dump(measured(args), sys.stdout)
        return
    if not (args.folder / "config.json").exists():
        make(args.folder, args.generation, 224)
    runs: dict[str, list[dict[str, Any]]] = {"pgcli": [], "transformers": []}
    for side in SIDES:
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.lora_step", *sys.argv[1:], "--side", side],
            stdout=subprocess.PIPE,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            cwd=ROOT,
            check=True,
        )
        runs[side].append(json.loads(process.stdout))
    report = {side: summary(runs_of_side) for side, runs_of_side in runs.items()}
    ours, reference = report["pgcli"], report["transformers"]
    for name in ("seconds", "processor_seconds", "peak_gb"):
        report[f"ratio_of_{name}"] = round(reference[name] / ours[name], 2)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One side's runs: all updates except the first of each run."""
    seconds = [update for run in runs for update in run["seconds"][1:]]
    processor = [update for run in runs for update in run["processor_seconds"][1:]]
    return {
        "seconds": round(median(seconds), 3),
        "processor_seconds": round(median(processor), 3),
        "peak_gb": round(median(run["peak_gb"] for run in runs), 3),
        "losses": runs[0]["losses"],
    }


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """The times and the memory of one side's updates, in this process."""
    import torch

    torch.manual_seed(0)
    step = (pgcli_step if args.side == "pgcli" else transformers_step)(args)
    seconds, processor, losses = [], [], []
    for _ in range(args.steps + 1):
        began, began_processor = perf_counter(), process_time()
        losses.append(step())
        seconds.append(perf_counter() - began)
        processor.append(process_time() - began_processor)
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "peak_gb": peak() / 1e9,
        "losses": losses,
    }


def pgcli_step(args: argparse.Namespace) -> Callable[[], float]:
    """The update of `pgcli train --method lora`; returns its loss."""
    import torch

    from pgcli.checkpoints import weights
    from pgcli.checkpoints.config import read_config
    from pgcli.training.answers import AnswerTokens, TokenizedExample, answer_loss
    from pgcli.training.lora import LoraSettings, add_lora, save_adapter
    from pgcli.training.trainer import make_optimizer

    config = read_config(args.folder)
    dtype = getattr(torch, args.dtype)
    model = weights.load_paligemma(args.folder, config, dtype=dtype)
    settings = LoraSettings(targets=args.targets)
    add_lora(model, settings, seed=0)
    save_adapter(model, settings, args.folder / "adapter", base_model=str(args.folder))
    model.decoder.gradient_checkpointing = not args.no_checkpointing
    rows = Rows.random(args.rows, config.vision.resolution, NEWLINE)
    examples = [
        TokenizedExample(prompt, answer)
        for prompt, answer in zip(rows.prompts, rows.answers, strict=True)
    ]
    optimizer = make_optimizer(model, weight_decay=0.0, betas=(0.9, 0.999))
    trained = [weight for weight in model.parameters() if weight.requires_grad]

    def step() -> float:
        model.train()
        total = 0.0
        for start in range(0, args.rows, args.micro_batch):
            part = slice(start, start + args.micro_batch)
            tokens = AnswerTokens.of(
                examples[part],
                patches=config.image_tokens,
                window=config.decoder.sliding_window,
                device=torch.device("cpu"),
            )
            loss = answer_loss(model, model.encode(rows.pixels[part].to(dtype)), tokens)
            (loss / args.rows).backward()
            total += loss.item() / args.rows
        update(optimizer, trained)
        return total

    return step


def transformers_step(args: argparse.Namespace) -> Callable[[], float]:
    """The same update with transformers' model and PEFT's adapters; returns its loss."""
    import peft
    import torch
    import transformers

    dtype = getattr(torch, args.dtype)
    base = transformers.PaliGemmaForConditionalGeneration.from_pretrained(args.folder, dtype=dtype)
    if not args.no_checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    config = base.config
    config.text_config.final_logit_softcapping = None  # like PaliGemma 2 in training
    model = peft.PeftModel.from_pretrained(base, args.folder / "adapter", is_trainable=True)
    patches = config.text_config.num_image_tokens or config.vision_config.num_image_tokens
    rows = Rows.random(args.rows, config.vision_config.image_size, NEWLINE)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0)

    def inputs(part: slice) -> dict[str, Any]:
        """The processor's output for a prefix and a suffix, padded on the right."""
        both = [*zip(rows.prompts[part], rows.answers[part], strict=True)]
        length = max(len(prompt) + len(answer) for prompt, answer in both)
        columns: dict[str, list[list[int]]] = {
            name: [] for name in ("input_ids", "token_type_ids", "labels", "attention_mask")
        }
        for prompt, answer in both:
            prefix = [config.image_token_index] * patches + prompt
            pad = [0] * (length - len(prompt) - len(answer))
            columns["input_ids"].append(prefix + answer + pad)
            columns["token_type_ids"].append([0] * len(prefix) + [1] * len(answer) + pad)
            columns["labels"].append([-100] * len(prefix) + answer + [-100] * len(pad))
            columns["attention_mask"].append([1] * (len(prefix) + len(answer)) + pad)
        return {name: torch.tensor(values) for name, values in columns.items()}

    def step() -> float:
        model.train()
        total = 0.0
        for start in range(0, args.rows, args.micro_batch):
            part = slice(start, start + args.micro_batch)
            out = model(**inputs(part), pixel_values=rows.pixels[part].to(dtype))
            # mean over tokens; equal to the mean over rows of equal length
            loss = out.loss * len(rows.answers[part]) / args.rows
            loss.backward()
            total += loss.item()
        update(optimizer, trained)
        return total

    return step


def update(optimizer: Any, trained: list[Any]) -> None:
    """Clip the gradients and update the weights."""
    import torch

    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    torch.nn.utils.clip_grad_norm_(trained, MAX_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


NEWLINE = 108


if __name__ == "__main__":
    main()
