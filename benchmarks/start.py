"""Measures the time from process start to captions in a file, compared with transformers.

    python benchmarks/start.py                       # 8 drawings, 5 rounds
    python benchmarks/start.py --model runs/3b --images 1
    python benchmarks/start.py --images 4000 --engines 2 --rounds 3

All programs get the same files, repeated beyond 1,000, and run alternately in fresh processes.
transformers' program follows its documentation, with pgcli's dtype and with token types that make
prompts bidirectional. With `--engines`, a third program has so many engines, and the first has one,
on all cores. Prints one JSON object: wall and processor seconds of every run, the ratios of
medians, and how many captions agree.
"""

from __future__ import annotations

import json
import sys
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.drawings import draw
from benchmarks.measure import options, times_in_turns, typical
from examples.demo_model.scenes import EVAL_SEEDS
from pgcli.checkpoints.find import find

PROGRAM = """
import json, sys
import torch
from PIL import Image
from transformers import AutoProcessor, PaliGemmaForConditionalGeneration

folder, output, dtype, *files = sys.argv[1:]
processor = AutoProcessor.from_pretrained(folder)
model = PaliGemmaForConditionalGeneration.from_pretrained(folder, dtype=getattr(torch, dtype))
with open(output, "w") as lines:
    for first in range(0, len(files), 64):
        batch = files[first : first + 64]
        images = [Image.open(file).convert("RGB") for file in batch]
        prompts = ["<image>caption en"] * len(batch)
        inputs = processor(images=images, text=prompts, return_tensors="pt")
        inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        with torch.inference_mode():
            generated = model.generate(**inputs, max_new_tokens=128, do_sample=False)
        texts = processor.batch_decode(
            generated[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        for file, text in zip(batch, texts):
            lines.write(json.dumps({"image": file, "answer": text.strip()}) + "\\n")
"""
ONE_ENGINE = """
import sys
from pgcli.__main__ import main
from pgcli.run.workers import work

work.MOST_ON_CPU = 1
sys.exit(main())
"""


def main() -> None:
    args = options(
        __doc__, model="demo", dtype=("float32", "bfloat16"), images=8, rounds=5, engines=int
    )
    with TemporaryDirectory() as scratch:
        images = Path(scratch) / "images"
        images.mkdir()
        drawings = draw(images, min(args.images, len(EVAL_SEEDS)))
        files = [*islice(cycle(map(str, drawings)), args.images)]
        caption = ["caption", *files, "--model", args.model, "--dtype", args.dtype]
        caption += ["--overwrite", "--quiet"]
        outputs = {name: Path(scratch) / f"{name}.jsonl" for name in ("pgcli", "transformers")}
        folder = str(find(args.model).folder)
        commands = {
            "pgcli": [sys.executable, "-c", ONE_ENGINE, *caption, "-o", str(outputs["pgcli"])],
            "transformers": [
                *(sys.executable, "-c", PROGRAM, folder, str(outputs["transformers"])),
                *(args.dtype, *files),
            ],
        }
        if args.engines is not None:
            outputs["engines"] = Path(scratch) / "engines.jsonl"
            engines = ["--engines", str(args.engines), "-o", str(outputs["engines"])]
            commands["engines"] = [sys.executable, "-m", "pgcli", *caption, *engines]
        times = times_in_turns(commands, args.rounds)
        captions = {name: answers(file) for name, file in outputs.items()}
    report: dict[str, object] = {"model": args.model, "images": len(files)}
    report |= {"dtype": args.dtype, "clock_and_processor_seconds": times}
    medians = {name: typical(runs) for name, runs in times.items()}
    for name in filter(lambda name: name != "transformers", captions):
        report[name] = {
            "times_as_fast_as": {
                against: round(seconds.clock / medians[name].clock, 2)
                for against, seconds in medians.items()
                if against != name
            },
            "times_as_little_processor_time_as_transformers": round(
                medians["transformers"].processor / medians[name].processor, 2
            ),
            "captions_alike": sum(map(str.__eq__, captions[name], captions["transformers"])),
        }
    print(json.dumps(report, indent=2))


def answers(file: Path) -> list[str]:
    return [json.loads(line)["answer"] for line in file.read_text().splitlines()]


if __name__ == "__main__":
    main()
