"""Measures the speedup of encoding each image once for several prompts.

    python benchmarks/several_prompts.py --model runs/3b --dtype bfloat16

Runs the same prompts on the same images in two ways, in turns: all prompts of an image together,
and each prompt alone. Prints one JSON object: rows per second, the
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
from pgcli.bench import peak_rates
from pgcli.bench.bench_images import BenchImages
from pgcli.bench.engine_runner import EngineRunner
from pgcli.bench.measure import in_turns, speed, speedup
from pgcli.bench.roofline import Stages, Workload, limit
from pgcli.bench.runner import BenchInputs, BenchRun
from pgcli.checkpoints.find import find
from pgcli.engine.loader import load
from pgcli.proof.generated_images import generate_images

PROMPTS = ("caption en", "caption de", "caption fr", "caption es", "caption it", "ocr", "describe")


def main() -> None:
    options = _options()
    engine = load(find(options.model), device=options.device, dtype=options.dtype)
    runner, prompts = EngineRunner(engine), PROMPTS[: options.prompts]
    with TemporaryDirectory() as scratch:
        images, files = BenchImages(generate_images(), engine.spec, Path(scratch)).first(
            options.images
        )
    ids = [engine.tokenizer.encode_prompt(prompt) for prompt in prompts]
    rows = len(images) * len(prompts)
    lengths = (options.new_tokens,) * rows
    question = tasks.ask(prompts, max_new_tokens=options.new_tokens)
    together = BenchInputs(images, files, question, ids, lengths, options.batch_size)

    def run_separately() -> BenchRun:
        """Every prompt alone, over all images."""
        alone = [
            BenchInputs(
                images,
                files,
                tasks.ask([prompt], max_new_tokens=options.new_tokens),
                [one],
                lengths[: len(images)],
                options.batch_size,
            )
            for prompt, one in zip(prompts, ids, strict=True)
        ]
        start = perf_counter()
        runs = [runner.run_arrays(inputs) for inputs in alone]
        seconds = perf_counter() - start
        tokens = tuple(run.tokens[n] for n in range(len(images)) for run in runs)
        return BenchRun(seconds, Stages(0.0, 0.0, 0.0), tokens)

    acts = [partial(runner.run_arrays, together), run_separately]
    for act in acts:
        act()
    shared, single = in_turns(acts, options.rounds)
    seconds = [[run.seconds for run in runs] for runs in (shared, single)]
    times = speedup("without reuse", *seconds)
    print(
        json.dumps(
            {
                "model": engine.label,
                "dtype": engine.dtype,
                "images": len(images),
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


def ceiling(engine, inputs: BenchInputs) -> float:
    """The ratio of the roofline limits with each image encoded once, and once per prompt."""
    weight = engine.model.projector.weight
    config = engine.model.config
    rates = peak_rates.measure_rates(
        config, inputs.batch, torch.device(engine.device), weight.dtype
    )
    prompt = max(map(len, inputs.ids))
    rows = Workload(inputs.batch, prompt, inputs.lengths, weight.itemsize)
    least = limit(config, rows, rates.peak)
    return least.total / (least.total - least.vision * (1 - 1 / len(inputs.ids)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=5, choices=range(2, len(PROMPTS) + 1))
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
