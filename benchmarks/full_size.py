"""Measures load time, caption time and memory of a 3b model with random weights.

    python benchmarks/full_size.py --generation 2 --folder runs/3b-second --quantize int8

Writes a bfloat16 checkpoint of 6 GB in the Hub's layout, unless it exists. Prints as JSON the time
to load and to answer 16 tokens a row, and the peak resident memory of both; for loading also
relative to the size of the loaded weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import ROOT, hub_config, options, peak

SHARD_BYTES = 2**31


def main() -> None:
    args = options(
        __doc__,
        folder=Path("runs/3b"),
        generation=(1, 2),
        resolution=(224, 448, 896),
        rows=2,
        dtype=("auto", "bfloat16", "float32"),
        quantize=("none", "int8"),
        measure=False,  # in the measured process
    )
    if args.measure:
        json.dump(measured(args.folder, args.rows, args.dtype, args.quantize), sys.stdout)
        return
    if not (args.folder / "config.json").exists():
        make(args.folder, args.generation, args.resolution)
    command = [sys.executable, "-m", "benchmarks.full_size", "--measure", "--rows", args.rows]
    command += ["--folder", args.folder.absolute(), "--dtype", args.dtype]
    command += ["--quantize", args.quantize]
    process = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, check=True, cwd=ROOT)
    sys.stdout.write(json.dumps(json.loads(process.stdout), indent=2) + "\n")


def make(folder: Path, generation: int, resolution: int) -> None:
    """A checkpoint as on the Hub: sparse configuration, shards, padded embedding rows."""
    import torch

    from pgcli.checkpoints.config import parse_config
    from pgcli.checkpoints.families.paligemma import NAMES as PALIGEMMA
    from pgcli.checkpoints.find import BUILTIN
    from pgcli.checkpoints.weights import meta_model, param_slices

    folder.mkdir(parents=True, exist_ok=True)
    config = hub_config(generation, resolution)
    tokenizer = json.loads((BUILTIN / "tokenizer.json").read_text())
    add_words(tokenizer["model"]["vocab"], config["image_token_index"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    torch.manual_seed(0)
    shard: dict[str, torch.Tensor] = {}
    shards: dict[str, str] = {}
    for name, part in param_slices(meta_model(parse_config(config))).items():
        weights = torch.empty(part.shape, dtype=torch.bfloat16)
        shard[PALIGEMMA.hub_name(name)] = weights.normal_(std=0.0 if "norm" in name else 0.02)
        if sum(tensor.nbytes for tensor in shard.values()) > SHARD_BYTES:
            _close(folder, shard, shards)
    _close(folder, shard, shards)
    index = json.dumps({"metadata": {}, "weight_map": shards})
    (folder / "model.safetensors.index.json").write_text(index)
    (folder / "config.json").write_text(json.dumps(config))


def add_words(vocabulary: dict[str, int], size: int) -> None:
    """Fill a vocabulary up to the Hub's size, for a realistic choice of tokens."""
    vocabulary |= {f"\u2581word{token}": token for token in range(len(vocabulary), size)}


def _close(folder: Path, shard: dict, shards: dict[str, str]) -> None:
    from safetensors.torch import save_file

    file = f"model-{len(set(shards.values())) + 1:05}.safetensors"
    save_file(shard, folder / file, metadata={"format": "pt"})
    shards |= dict.fromkeys(shard, file)
    shard.clear()


def measured(folder: Path, rows: int, dtype: str, quantize: str) -> dict[str, object]:
    """Seconds and bytes of loading the checkpoint and answering `rows` rows, in this process."""
    from time import perf_counter, process_time

    import numpy as np
    import torch

    from pgcli import tasks
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.engine.loader import open_engine
    from pgcli.engine.memory import weight_bytes
    from pgcli.records import DecodedImage, Item

    imported = peak()
    began, cpu_began = perf_counter(), process_time()
    checkpoint = Checkpoint("full size", folder)
    engine = open_engine(checkpoint, dtype=dtype, batch_size=rows, quantize=quantize)
    loaded, cpu_loaded, after_load = perf_counter(), process_time(), peak()
    weights = weight_bytes(
        engine.model.config, getattr(torch, engine.dtype), device=engine.device, quantize=quantize
    )
    side = engine.spec.resolution
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    question = tasks.caption(max_new_tokens=16)
    items = (Item(n, str(n), str(n), prompts=question.templates or ()) for n in range(rows))
    stream = ((n, DecodedImage(item, side, side, noise, 0.0)) for n, item in enumerate(items))
    answers = [answer for _, answer in engine.ask(stream, question)]
    answered, cpu_answered = perf_counter(), process_time()
    return {
        "device": engine.device,
        "dtype": engine.dtype,
        "threads": torch.get_num_threads(),
        "weights_gb": weights / 1e9,
        "load_seconds": round(loaded - began, 1),
        "load_processor_seconds": round(cpu_loaded - cpu_began, 1),
        "load_peak_over_weights": round((after_load - imported) / weights, 3),
        "rows": rows,
        "answer_seconds": round(answered - loaded, 1),
        "answer_processor_seconds": round(cpu_answered - cpu_loaded, 1),
        "prefill_ms_a_row": round(sum(answer.prefill_ms or 0 for answer in answers) / rows),
        "decode_ms_a_token": round(
            sum(answer.decode_ms or 0 for answer in answers)
            / max(1, sum(answer.tokens or 0 for answer in answers) - rows)
        ),
        "vision_ms_a_row": round(sum(answer.vision_ms or 0 for answer in answers) / rows),
        "resident_peak_gb": round(peak() / 1e9, 2),
    }


if __name__ == "__main__":
    main()
