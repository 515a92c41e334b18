"""The two stages that the pipeline is given: decode images, answer prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pgcli.cli.job.input import RunInput
from pgcli.cli.job.plan import Plan
from pgcli.pipeline import Ask, Decode

if TYPE_CHECKING:
    from pgcli.engine.engine import InferenceEngine
    from pgcli.images import ImageSpec


def decode_stage(
    input: RunInput,
    spec: ImageSpec,
    should_stop: Callable[[], bool],
    *,
    resumes: bool,
    stamps: bool,
) -> Decode:
    """The function that decodes items ahead of the model, in worker processes unless they are few.

    A resumed run always uses worker processes: the run before may have died of an image, which
    then becomes an error row. So does a run that reads URLs, whose images are not trusted. With
    `stamps`, images are stamped, so that a later run can compare them.
    """
    from PIL import Image

    from pgcli import images, workers

    Image.MAX_IMAGE_PIXELS = None  # --max-pixels is the limit that counts in this process

    options = input.options.input
    spec = replace(spec, fast_decode=options.fast_decode)
    return partial(
        workers.prefetch,
        decode=images.ImageDecoder(spec, input.plan.image_limits, stamps),
        workers=options.workers,
        total=None if resumes or input.url_reader else input.images,
        should_stop=should_stop,
        fetcher=input.url_reader,
        pauses=input.source.total is None,
    )


def answer_stage(plan: Plan, engine: InferenceEngine, should_stop: Callable[[], bool]) -> Ask:
    """The function that answers decoded images with the plan's question and sampling options."""
    from pgcli.engine.sampler import SamplingParams

    options = plan.options.answering
    sampling = SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        seed=options.seed,
    )
    return partial(engine.ask, question=plan.question, sampling=sampling, should_stop=should_stop)
