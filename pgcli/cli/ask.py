"""caption, ask, detect and ocr: from what the user named to rows that are saved."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING

from pgcli import __version__
from pgcli.checkpoints.find import DEMO, find
from pgcli.cli import plan as plans
from pgcli.cli import summary
from pgcli.cli.models import check_revision
from pgcli.cli.options import Model, Options
from pgcli.cli.plan import Plan
from pgcli.cli.screen import Screen, is_terminal
from pgcli.errors import NoInputError, OutputFailed
from pgcli.printable import encodable
from pgcli.records import Answer, Item, Picture, error_answer
from pgcli.run import Ask, Look, Tally, run
from pgcli.sinks import Sink, open_sink
from pgcli.tasks import Question

if TYPE_CHECKING:
    from pgcli.engine.engine import Engine
    from pgcli.images import Square

#: The libraries that an answer may depend on.
VERSIONED = ("torch", "pillow", "tokenizers", "numpy")


def answer(names: Sequence[str], question: Question, options: Options) -> int:
    """Answer the question about every picture; the exit code is 3 where rows have errors, else 0.

    What the user can have got wrong shows before the model is loaded.
    """
    began = perf_counter()
    screen = Screen(quiet=options.running.quiet)
    check_revision(options.model.model or DEMO, options.model.revision)
    plan = plans.made(names, question, options)
    settings: dict[str, object] = {}
    sink = opened(options, settings, screen)
    if options.running.dry_run or options.running.verbose:
        screen.table(plan.facts())
    if options.running.dry_run:
        return 0
    remark(plan, screen)
    engine = open_engine(options.model, screen)
    settings |= settings_of(plan, engine)
    loaded = perf_counter()
    items = plans.Taste(plan.items()) if plan.takes_demo_unasked else plan.items()
    tally = answered(plan, engine, items, sink, screen)
    times = summary.Times(perf_counter() - began, loaded - began)
    screen.table(summary.facts(plan, engine, tally, times))
    if isinstance(items, plans.Taste) and items.exceeded:
        raise plans.too_many_for_demo(f"more than {plans.DEMO_PICTURES} pictures")
    return 3 if tally.errors else 0


def opened(options: Options, settings: dict[str, object], screen: Screen) -> Sink:
    """Where the rows go. The settings are read when it is complete, and may be filled till then."""
    chosen = options.output
    if chosen.output == "-" and sys.stdout is None:
        raise OutputFailed("standard output is closed", hint="name a file: -o rows.jsonl")
    return open_sink(
        chosen.output,
        format=chosen.format,
        overwrite=chosen.overwrite,
        timing=not chosen.no_timing,
        keep=options.input.keep,
        settings=settings,
        stdout=screen.rows() if chosen.output == "-" else None,
    )


def remark(plan: Plan, screen: Screen) -> None:
    """Say what may surprise about the answers, before they are waited for."""
    if plan.takes_demo_unasked:
        screen.say(
            f"{DEMO}, the built-in model, answers: it knows only drawings of coloured shapes; "
            f"name {plans.REAL_MODEL}"
        )
    if "-" in plan.names and is_terminal(sys.stdin):
        screen.say("reading paths from the terminal, one on each line; Ctrl-D ends them")
    chosen = plan.options.answering
    if chosen.temperature == 0 and (chosen.top_p < 1 or chosen.top_k):
        screen.say("--top-p and --top-k change nothing without a --temperature")


def open_engine(chosen: Model, screen: Screen) -> Engine:
    """The model, loaded: found first, as a download shows its own progress."""
    if screen.quiet:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when the library loads
    checkpoint = find(chosen.model or DEMO, chosen.revision)
    with screen.waiting(f"loading {checkpoint.label}"):
        from pgcli.engine.engine import load  # torch, which takes a second

        engine = load(
            checkpoint, device=chosen.device, dtype=chosen.dtype, batch_size=chosen.batch_size
        )
    return engine


def answered(
    plan: Plan, engine: Engine, items: Iterable[Item], sink: Sink, screen: Screen
) -> Tally:
    """Run, with the progress shown. A run cut short says what is left of it."""
    question = plan.question
    progress = screen.progress(question.task, plan.rows)

    def refuse(picture: Picture, prompt: str) -> Answer:
        return error_answer(picture, prompt, task=question.task, model=engine.label)

    try:
        with progress, sink:
            tally = run(
                items,
                look(plan, engine.square),
                asking(plan, engine),
                sink.save,
                refuse,
                on_row=progress.count,
                on_error=plan.options.running.on_error,
            )
            if not tally.rows:  # only standard input can turn out empty this late
                raise NoInputError(
                    "nothing came on standard input",
                    hint="pipe in a path or a JSON object on each line, or name a folder",
                )
            return tally
    except (BrokenPipeError, NoInputError):
        raise
    except BaseException:
        screen.say(summary.left_behind(plan.options.output.output, progress.tally.rows))
        raise


def look(plan: Plan, square: Square) -> Look:
    """How pictures are looked at: ahead of the model, unless they are few."""
    from PIL import Image

    from pgcli import images, workers

    Image.MAX_IMAGE_PIXELS = None  # this process is ours, and --max-pixels is the limit that counts

    chosen = plan.options.input
    limits = images.Limits()
    if chosen.max_pixels is not None:
        limits = replace(limits, max_pixels=chosen.max_pixels)
    region = plan.options.answering.region
    eye = partial(images.look, square=square, limits=limits, region=region)
    return partial(workers.look_ahead, look=eye, workers=chosen.workers, total=plan.pictures)


def asking(plan: Plan, engine: Engine) -> Ask:
    """How the model is asked: the task, and how its answers are drawn."""
    from pgcli.engine.generate import Sampling

    chosen, question = plan.options.answering, plan.question
    return partial(
        engine.ask,
        task=question.task,
        max_new_tokens=question.max_new_tokens,
        sampling=Sampling(
            temperature=chosen.temperature, top_p=chosen.top_p, top_k=chosen.top_k, seed=chosen.seed
        ),
    )


def settings_of(plan: Plan, engine: Engine) -> dict[str, object]:
    """What the rows depend on, for the output's own record of how it was made."""
    chosen = plan.options.answering
    return {
        "command": plan.question.task,
        "sources": [encodable(name) for name in plan.names],
        "prompts": plan.question.templates,
        "model": engine.label,
        "device": engine.device,
        "dtype": engine.dtype,
        "batch_size": engine.batch_size,
        "max_new_tokens": plan.question.max_new_tokens,
        "temperature": chosen.temperature,
        "top_p": chosen.top_p,
        "top_k": chosen.top_k,
        "seed": chosen.seed,
        "region": chosen.region,
        "limit": plan.options.input.limit,
        "max_pixels": plan.options.input.max_pixels,
        "versions": {"pgcli": __version__, **{name: version(name) for name in VERSIONED}},
    }
