"""What a decode step of `ask --schema` costs beside an unconstrained one, with a given vocabulary.

    python benchmarks/schema_cost.py MODEL [--rows 64]

Both answer the same images in one process, alternately, with as many tokens; a step is timed as
the rows' decode time over their tokens.
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np
from PIL import Image

import pgcli

TEXT = {"type": "string", "minLength": 16, "maxLength": 16}
SCHEMA = {"type": "object", "properties": {"name": TEXT}, "required": ["name"]}


def step_ms(engine: pgcli.Engine, images: list[Image.Image], **settings: object) -> float:
    """The time of a step of all rows, in milliseconds."""
    rows = len(images)
    answers = [*engine.ask(images, "What is this?", batch_size=rows, **settings)]
    total = sum(answer.decode_ms or 0.0 for answer in answers)
    return total / max(answer.tokens or 0 for answer in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    engine = pgcli.load(options.model)
    pixels_BHW3 = np.random.default_rng(0).integers(
        0, 255, (options.rows, 32, 32, 3), dtype=np.uint8
    )
    images = [Image.fromarray(pixels) for pixels in pixels_BHW3]
    plain, typed = [], []
    for _ in range(options.rounds):
        typed.append(step_ms(engine, images, schema=SCHEMA, max_new_tokens=64))
        plain.append(step_ms(engine, images, max_new_tokens=24))
    ratios = [with_schema / without for with_schema, without in zip(typed, plain, strict=True)]
    print(f"unconstrained {median(plain):.1f} ms a step, with a schema {median(typed):.1f} ms")
    print(f"difference {median(typed) - median(plain):.1f} ms; ratio {median(ratios):.2f}")


if __name__ == "__main__":
    main()
