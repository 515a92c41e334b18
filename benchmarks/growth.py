"""Measures how the cost of commands that read rows grows with the number of rows.

    .venv/bin/python benchmarks/growth.py                          # 1,000, 10,000 and 100,000 rows
    .venv/bin/python benchmarks/growth.py --sizes 1000,1000000 --only eval

Prints a table of processor seconds and peak memory of whole commands. Rows are generated, with 100
different images.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet

from benchmarks.measure import ROOT, options
from benchmarks.resume import make_run
from pgcli.boxes import CORNERS
from pgcli.results.edits import FORMAT, VERSION
from pgcli.rows import answer_digest

IMAGES, WIDTH, HEIGHT = 100, 64, 48
LABELS = [f"label {number}" for number in range(20)]
WORDS = "a the red blue cat dog man woman sits stands on near table chair street with large".split()
VECTOR = 192  # the size of the built-in model's vectors
IMAGE_SIZE = {"width": WIDTH, "height": HEIGHT}
RUN = {
    **IMAGE_SIZE,
    **{"tokens": 5, "finish": "stop", "logprob": -0.1},
    **dict.fromkeys(("load_ms", "vision_ms", "prefill_ms", "decode_ms"), 1.0),
    **{"batch": 8, "model": "m", "error": None, "error_message": None},
}
#: The rows that each command reads, and its words.
COMMANDS = {
    "eval --metric exact": ("answers", "eval rows.jsonl --truth truth.jsonl --metric exact --json"),
    "eval --metric cider": ("captions", "eval rows.jsonl --truth truth.jsonl --json"),
    "eval --metric ap": ("boxes", "eval rows.jsonl --truth truth.jsonl --json"),
    "view": ("boxes", "view rows.jsonl -o page.html --overwrite"),
    "export --to coco": ("boxes", "export rows.jsonl --to coco -o coco.json --overwrite"),
    "export --to csv": ("boxes", "export rows.jsonl --to csv -o rows.csv --overwrite"),
    "export --to labelstudio": (
        "boxes",
        "export rows.jsonl --to labelstudio -o studio.json --overwrite",
    ),
    "import --from coco": ("coco", "import coco.json --from coco -o rows.jsonl"),
    "apply": ("boxes", "apply edits.json rows.jsonl -o applied.jsonl --overwrite"),
    "merge": ("boxes", "merge rows.jsonl again.jsonl -o merged.jsonl --overwrite"),
    "diff": ("boxes", "diff rows.jsonl again.jsonl"),
    "status": ("run", "status out.jsonl --json"),
    "check": ("run", "check out.jsonl"),
    "search --image": ("vectors", "search rows.parquet --image 000.png --model demo-towers"),
    "search --duplicates": ("vectors", "search rows.parquet --duplicates -o groups.jsonl"),
}
QUADRATIC = "search --duplicates"  # compares all pairs
#: Starts a command from a small process: Linux counts the memory of the parent as the child's.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""


class Cost(NamedTuple):
    """The processor seconds of a command with its children, and its peak memory in bytes."""

    seconds: float
    memory: int


def write_rows(kind: str, rows: int) -> None:
    """Write the images, the rows, the truth about them, the same rows again, and their edits."""
    if kind == "run":
        make_run(rows)
        return
    for number in range(IMAGES):
        Image.new("RGB", (WIDTH, HEIGHT), (number, 99, 9)).save(f"{number:03}.png")
    if kind == "vectors":
        write_vectors(rows)
        return
    if kind == "coco":
        write_coco(rows)
        return
    draw, edits = random.Random(0), []
    with Path("rows.jsonl").open("w") as file, Path("truth.jsonl").open("w") as truth:
        for number in range(rows):
            row, true = KINDS[kind](draw)
            id_, image = f"{number:08}.png", f"{number % IMAGES:03}.png"
            row = {"index": number, "id": id_, "image": image, **RUN, **row}
            file.write(json.dumps(row) + "\n")
            truth.writelines(json.dumps({"id": id_, **values}) + "\n" for values in true)
            key = {"index": number, "id": id_, "prompt": row["prompt"]}
            edits.append({**key, "digest": answer_digest(row), "state": "accepted"})
    Path("again.jsonl").write_bytes(Path("rows.jsonl").read_bytes())
    Path("edits.json").write_text(
        json.dumps({"format": FORMAT, "version": VERSION, "edits": edits})
    )


def answer(draw: random.Random) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A row of `ask`, and its truth."""
    row = {"task": "ask", "prompt": "what?", "answer": draw.choice(WORDS), "boxes": []}
    return row, [{"answer": draw.choice(WORDS)}]


def caption(draw: random.Random) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A row of `caption`, and a reference."""
    text, reference = (" ".join(draw.choices(WORDS, k=10)) for _ in range(2))
    row = {"task": "caption", "prompt": "caption en", "answer": text, "boxes": []}
    return row, [{"caption": reference}]


def boxes(draw: random.Random) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A row of `detect` with up to four boxes, and its truth."""
    true, answered = [], []
    for _ in range(draw.randrange(1, 5)):
        left, top = draw.uniform(0, WIDTH / 2), draw.uniform(0, HEIGHT / 2)
        right, bottom = left + draw.uniform(4, WIDTH / 2), top + draw.uniform(4, HEIGHT / 2)
        corners = {"xmin": left, "ymin": top, "xmax": right, "ymax": bottom}
        true.append({"label": draw.choice(LABELS), **corners})
        moved = {"xmin": left + draw.uniform(0, 3), "confidence": draw.random(), "score": 0.5}
        answered.append({**true[-1], **moved})
    prompt = f"detect {' ; '.join(LABELS)}"
    row = {"task": "detect", "prompt": prompt, "answer": "", "boxes": answered}
    return row, [{"boxes": true}]


KINDS: dict[str, Callable[[random.Random], tuple[dict[str, Any], list[dict[str, Any]]]]] = {
    "answers": answer,
    "captions": caption,
    "boxes": boxes,
}


def write_coco(rows: int) -> None:
    """Write `coco.json` with as many images, which share their data."""
    draw, annotations = random.Random(0), []
    images = [{"id": n, "file_name": f"{n:08}.png", **IMAGE_SIZE} for n in range(rows)]
    for image in images:
        Path(image["file_name"]).hardlink_to(f"{image['id'] % IMAGES:03}.png")
        for box in boxes(draw)[1][0]["boxes"]:
            left, top, right, bottom = (box[name] for name in CORNERS)
            annotations.append(
                {
                    **{"id": len(annotations), "image_id": image["id"]},
                    "category_id": LABELS.index(box["label"]),
                    "bbox": [left, top, right - left, bottom - top],
                }
            )
    categories = [{"id": number, "name": label} for number, label in enumerate(LABELS)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    Path("coco.json").write_text(json.dumps(document))


def write_vectors(rows: int) -> None:
    """Write `rows.parquet` as `embed` does, with a near-duplicate in each 100 rows."""
    draw = np.random.default_rng(0)
    schema = pyarrow.schema(
        [(name, pyarrow.string()) for name in ("id", "image")]
        + [("embedding", pyarrow.list_(pyarrow.float32(), VECTOR))]
    )
    with parquet.ParquetWriter("rows.parquet", schema, compression="zstd") as file:
        for first in range(0, rows, 10_000):
            count = min(10_000, rows - first)
            vectors = draw.standard_normal((count, VECTOR), np.float32)
            vectors[99::100] = vectors[98::100][: len(vectors[99::100])]
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            names = [f"{number:08}.png" for number in range(first, first + count)]
            embeddings = pyarrow.FixedSizeListArray.from_arrays(vectors.ravel(), VECTOR)
            file.write_table(pyarrow.table([names, names, embeddings], schema=schema))


def cost_of(words: str) -> Cost:
    """The cost of `pgcli WORDS`."""
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "pgcli", *words.split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    code, seconds, memory = done.stdout.split()
    if code != "0":
        raise RuntimeError(f"pgcli {words} ended with {code}: {done.stderr}")
    return Cost(float(seconds), int(memory) * 1024)


def costs(names: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[int, str, Cost]]:
    """The cost of each command with each number of rows, size by size."""
    start = Path.cwd()
    for rows in sizes:
        for kind in dict.fromkeys(COMMANDS[name][0] for name in names):
            with TemporaryDirectory() as folder:
                os.chdir(folder)
                try:
                    write_rows(kind, rows)
                    for name in names:
                        if COMMANDS[name][0] == kind:
                            yield rows, name, cost_of(COMMANDS[name][1])
                finally:
                    os.chdir(start)


def main() -> None:
    chosen = options(__doc__, sizes="1000,10000,100000", only="")
    sizes = [int(size) for size in chosen.sizes.split(",")]
    names = [name for name in COMMANDS if chosen.only in name]
    table: dict[str, list[str]] = {name: [] for name in names}
    for rows, name, cost in costs(names, sizes):
        table[name].append(f"{cost.seconds:.1f} s, {cost.memory / 1e6:.0f} MB")
        sys.stderr.write(f"{name}, {rows:,} rows: {table[name][-1]}\n")
    sys.stdout.write(f"| command | {' | '.join(f'{size:,} rows' for size in sizes)} |\n")
    sys.stdout.write("|---" * (len(sizes) + 1) + "|\n")
    for name, cells in table.items():
        sys.stdout.write(f"| `{name}` | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
