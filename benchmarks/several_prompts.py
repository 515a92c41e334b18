"""Several prompts about each picture: what it saves that a picture is encoded once for all.

    python benchmarks/several_prompts.py --model runs/3b --dtype bfloat16

Asks the same questions about the same pictures twice, in turns: all prompts of a picture together,
and each as if it were about a picture of its own. Prints one JSON object: rows per second, the
ratio of medians, the ratio that the roofline allows on this machine, and whether tokens agree.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from pgcli import tasks
from pgcli.bench import machine
from pgcli.bench.engine_runner import EngineRunner
from pgcli.bench.inputs import BenchInputs, BenchRun, ImagePool
from pgcli.bench.measure import in_turns, ratio, speed
from pgcli.bench.plan import Lengths
from pgcli.bench.roofline import Stages, Workload, limit
from pgcli.checkpoints.find import find
from pgcli.cli.job.answer_files import answer_files
from pgcli.engine.loader import load
from pgcli.proof.generated_images import generate_images

PROMPTS = ("caption en", "caption de", "caption fr", "caption es", "caption it", "ocr", "describe")


def main() -> None:
    options = _options()
    engine = load(find(options.model), device=options.device, dtype=options.dtype)
    side, prompts = EngineRunner(engine, answer_files), PROMPTS[: options.prompts]
    with TemporaryDirectory() as scratch:
        looked, stored = ImagePool(generate_images(), engine.spec, Path(scratch)).first(
            options.pictures
        )
    ids = [engine.tokenizer.encode_prompt(prompt) for prompt in prompts]
    rows = len(looked) * len(prompts)
    lengths = Lengths(options.new_tokens, options.new_tokens).of(rows)
    question = tasks.ask(prompts, max_new_tokens=options.new_tokens)
    together = BenchInputs(looked, stored, question, ids, lengths, options.batch_size)

    def apart() -> BenchRun:
        """Every prompt alone, over all pictures: the engine has nothing to share."""
        alone = [
            BenchInputs(
                looked,
                stored,
                tasks.ask([prompt], max_new_tokens=options.new_tokens),
                [one],
                lengths[: len(looked)],
                options.batch_size,
            )
            for prompt, one in zip(prompts, ids, strict=True)
        ]
        began = perf_counter()
        runs = [side.arrays(work) for work in alone]
        seconds = perf_counter() - began
        tokens = tuple(run.tokens[n] for n in range(len(looked)) for run in runs)
        return BenchRun(seconds, Stages(0.0, 0.0, 0.0), tokens)

    acts = [partial(side.arrays, together), apart]
    for act in acts:
        act()
    shared, single = in_turns(acts, options.rounds)
    seconds = [[run.seconds for run in runs] for runs in (shared, single)]
    times = ratio("without reuse", *seconds)
    print(
        json.dumps(
            {
                "model": engine.label,
                "dtype": engine.dtype,
                "pictures": len(looked),
                "prompts": len(prompts),
                "batch_size": options.batch_size,
                "new_tokens": options.new_tokens,
                "rows_per_second": speed("reuse", rows, seconds[0]).rows_per_second,
                "rows_per_second_without": speed("without", rows, seconds[1]).rows_per_second,
                "ratio_of_medians": round(times.times, 3),
                "ratio_by_rounds": [round(times.lowest, 3), round(times.highest, 3)],
                "ratio_of_the_limits": round(ceiling(engine, together), 3),
                "same_tokens": shared[-1].tokens == single[-1].tokens,
            },
            indent=2,
        )
    )


def ceiling(engine, work: BenchInputs) -> float:
    """How many times as fast it could be by the roofline: each picture's vision once, not often."""
    weight = engine.model.projector.weight
    config = engine.model.config
    known = machine.measured(config, work.batch, torch.device(engine.device), weight.dtype)
    prompt = max(map(len, work.ids))
    rows = Workload(work.batch, prompt, work.lengths, weight.itemsize)
    least = limit(config, rows, known.roof)
    return least.total / (least.total - least.vision * (1 - 1 / len(work.ids)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--pictures", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=5, choices=range(2, len(PROMPTS) + 1))
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
