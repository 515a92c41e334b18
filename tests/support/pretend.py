"""The command line with a pretended model and no torch: `python tests/support/pretend.py ...`.

A row takes PRETEND_SECONDS, the first one creates the file PRETEND_BEGUN, and the answer is
`an image of W x H`. If PRETEND_ANSWERS, a JSON list, has a text for the image's index, the answer
is that text, with a box of that label.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pgcli import images
from pgcli.boxes import location_values, with_locations
from pgcli.checkpoints.find import Checkpoint
from pgcli.images import ImageDecoder, ImageSpec
from pgcli.records import Answer, Box, DecodedImage, Item, Task, unanswered
from pgcli.tasks import Question


class Engine:
    """Answers by size, one row after the other."""

    label = "pretended@1"
    spec = ImageSpec(28)
    device = "cpu"
    dtype = "float32"
    batch_size = 1
    is_large = False
    image_stats = SimpleNamespace(hits=0, prompts=0)
    batch_limits = SimpleNamespace(summary=str)

    def ask(
        self,
        stream: Iterable[tuple[int, DecodedImage]],
        question: Question,
        sampling: object,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Answer]]:
        for row_index, image in stream:
            for number, prompt in enumerate(image.item.prompts, start=row_index):
                if should_stop():
                    return
                if begun := os.environ.get("PRETEND_BEGUN"):
                    Path(begun).touch()
                time.sleep(float(os.environ.get("PRETEND_SECONDS", "0")))
                yield number, answer(image, prompt, question.task, self.label)


def answer(image: DecodedImage, prompt: str, task: Task, label: str = Engine.label) -> Answer:
    index = image.item.index
    labels = json.loads(os.environ.get("PRETEND_ANSWERS", "[]"))[index : index + 1]
    return replace(
        unanswered(image, with_region(image, prompt), task=task, model=label),
        answer=labels[0] if labels else f"an image of {image.width} x {image.height}",
        boxes=tuple(Box(label, 0.0, 0.0, 9.0, 9.0, 0.5) for label in labels),
        tokens=6,
        finish="stop",
        logprob=-0.5,
        vision_ms=1.0,
        prefill_ms=2.0,
        decode_ms=3.0,
        batch=1,
    )


def with_region(image: DecodedImage, prompt: str) -> str:
    """The prompt in rows."""
    region, width, height = image.item.region, image.width, image.height
    if region is None or width is None or height is None:
        return prompt
    return with_locations(prompt, location_values(region, width, height) or ())


class CrashingDecoder(ImageDecoder):
    """A decoder that crashes on one image, like a bug in native code."""

    def __call__(self, item: Item) -> DecodedImage:
        if item.id == os.environ["PRETEND_POISON"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().__call__(item)


def load_model(checkpoint: Checkpoint, *_: object, **__: object) -> Engine:
    engine = Engine()
    engine.label = checkpoint.label  # a resumed run compares it with the files' label
    return engine


def load_engine(request: object, checkpoint: Checkpoint, *_: object) -> Engine:
    """Replaces `pgcli.run.model.load_engine`."""
    return load_model(checkpoint)


def main() -> int:
    """Run the command line with the pretended model."""
    from pgcli.__main__ import main

    replaced: dict[str, Any] = sys.modules
    replaced["pgcli.engine.loader"] = SimpleNamespace(open_engine=load_model)
    replaced["pgcli.engine.memory"] = SimpleNamespace(new_slots=lambda question: 0)
    replaced["pgcli.engine.sampler"] = SimpleNamespace(SamplingParams=lambda *_, **__: None)
    if "PRETEND_POISON" in os.environ:
        images.ImageDecoder = CrashingDecoder
    return main()


if __name__ == "__main__":
    sys.exit(main())
