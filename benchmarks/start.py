"""Measures the time from process start to captions in a file, next to transformers.

    python benchmarks/start.py                       # 8 drawings, 5 rounds
    python benchmarks/start.py --model runs/3b --images 1

Both programs get the same files and run in turns in fresh processes. transformers' program follows
its documentation, with the dtype of this code and token types that make prompts bidirectional.
Prints one JSON object: seconds of every run, the ratio of medians, and how many captions agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from pgcli.checkpoints.find import find

PROGRAM = """
import json, sys
import torch
from PIL import Image
from transformers import AutoProcessor, PaliGemmaForConditionalGeneration

folder, output, dtype, *files = sys.argv[1:]
processor = AutoProcessor.from_pretrained(folder)
model = PaliGemmaForConditionalGeneration.from_pretrained(folder, dtype=getattr(torch, dtype))
images = [Image.open(file).convert("RGB") for file in files]
inputs = processor(images=images, text=["<image>caption en"] * len(files), return_tensors="pt")
inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
with torch.inference_mode():
    generated = model.generate(**inputs, max_new_tokens=128, do_sample=False)
texts = processor.batch_decode(
    generated[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
)
with open(output, "w") as lines:
    for file, text in zip(files, texts):
        lines.write(json.dumps({"image": file, "answer": text.strip()}) + "\\n")
"""


def main() -> None:
    options = _options()
    with TemporaryDirectory() as scratch:
        images = Path(scratch) / "images"
        subprocess.run(
            [
                *(sys.executable, Path(__file__).with_name("drawings.py"), images),
                *("--count", str(options.images)),
            ],
            check=True,
        )
        files = sorted(map(str, images.iterdir()))
        pgcli_file, hf_file = Path(scratch) / "pgcli.jsonl", Path(scratch) / "transformers.jsonl"
        mine = [sys.executable, "-m", "pgcli", "caption", *files, "--model", options.model]
        mine += ["--dtype", options.dtype, "-o", str(pgcli_file), "--overwrite", "--quiet"]
        other = [sys.executable, "-c", PROGRAM, str(find(options.model).folder), str(hf_file)]
        commands = [mine, [*other, options.dtype, *files]]
        seconds: list[list[float]] = [[], []]
        for number in range(options.rounds + 1):  # the first is a warm-up
            for side in (0, 1) if number % 2 else (1, 0):
                taken = timed(commands[side])
                if number:
                    seconds[side].append(round(taken, 3))
        alike = [one == two for one, two in zip(answers(pgcli_file), answers(hf_file), strict=True)]
    report = {
        "model": options.model,
        "images": len(files),
        "dtype": options.dtype,
        "pgcli_seconds": seconds[0],
        "transformers_seconds": seconds[1],
        "ratio_of_medians": round(median(seconds[1]) / median(seconds[0]), 2),
        "captions_alike": sum(alike),
    }
    print(json.dumps(report, indent=2))


def timed(command: list[str]) -> float:
    """The seconds that a process takes from its start to its end."""
    began = perf_counter()
    subprocess.run(
        command, check=True, stderr=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    return perf_counter() - began


def answers(file: Path) -> list[str]:
    return [json.loads(line)["answer"] for line in file.read_text().splitlines()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="a checkpoint folder, or demo")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
