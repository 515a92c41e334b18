"""caption, ask, detect, segment and ocr: from what the user named to rows that are saved."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGPIPE
from time import perf_counter
from typing import TYPE_CHECKING

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import DEMO, FETCH_DECODER, Checkpoint, find
from pgcli.cli.find_model import check_revision, warn_unused_gpu
from pgcli.cli.job import plan as plans
from pgcli.cli.job.callbacks import RowHook, Watching
from pgcli.cli.job.draw.option import open_drawing
from pgcli.cli.job.html_report import open_compared
from pgcli.cli.job.inline import open_inline
from pgcli.cli.job.oom_notice import OomNotice
from pgcli.cli.job.output import (
    RunOutput,
    already_complete,
    check_output,
    insist_on_as_many,
    opened,
)
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.row_hooks import RowHooks
from pgcli.cli.job.run_settings import run_metadata, settings_of_model
from pgcli.cli.job.shutdown import GracefulShutdown, Interrupted
from pgcli.cli.job.sidecars import open_sidecars
from pgcli.cli.options import Options
from pgcli.cli.ui import summary
from pgcli.cli.ui.console import Screen, is_terminal
from pgcli.cli.ui.downloads import Downloads
from pgcli.errors import NoInputError, OutputExists
from pgcli.pipeline import Ask, Decode, Tally, run
from pgcli.records import Answer, DecodedImage, Item, error_answer
from pgcli.tasks import Question, check_max_new_tokens

if TYPE_CHECKING:
    from pgcli.engine.engine import Engine
    from pgcli.images import ImageLimits, ImageSpec


def answer(
    names: Sequence[str],
    question: Question,
    options: Options,
    *,
    mask_decoder: str | None = None,
) -> int:
    """Answer the question about every picture; the exit code is 3 where rows have errors, else 0.

    What the user can have got wrong shows before the model is loaded.
    """
    began = perf_counter()
    screen = Screen(quiet=options.running.quiet)
    check_revision(options.model.model or DEMO, options.model.revision)
    plan = plans.make_plan(names, question, options, mask_decoder=mask_decoder)
    if options.running.dry_run or options.running.verbose:
        screen.table(plan.facts())
    if options.running.dry_run:
        check_output(plan)
        open_sidecars(plan)
        open_drawing(plan, limits(plan), screen.info)
        open_compared(plan)
        from pgcli.cli.job import dry_run  # which asks as a run does

        screen.table(dry_run.facts(plan, screen))
        return 0
    inline = open_inline(plan, limits(plan))
    with opened(plan, screen, above=inline.above) as output:
        drawing = open_drawing(plan, limits(plan), screen.info, goes_on=output.goes_on)
        sidecars, compared = open_sidecars(plan), open_compared(plan, goes_on=output.goes_on)
        beside = RowHooks(sidecars=sidecars, drawn=drawing, inline=inline, page=compared)
        insist_on_as_many(plan, output, plan.rows)
        if output.rows == plan.rows and not output.retries:
            code = already_complete(plan, output, screen)
            compared.make(quiet=screen.quiet)
            return code
        remark(plan, screen)
        engine = load_model(plan, screen)
        with screen.status("comparing the model's files"):
            output.settle(settings_of_model(plan, engine), run_metadata(plan, engine))
        loaded = perf_counter()
        items = plans.DemoLimit(plan.items()) if plan.takes_demo_unasked else plan.items()
        tally = answered(plan, engine, items, output, beside, screen)
    times = summary.RunTimes(perf_counter() - began, loaded - began)
    summary.show(screen, plan, engine, tally, times, beside.facts())
    compared.make(quiet=screen.quiet)
    if isinstance(items, plans.DemoLimit) and items.exceeded:
        raise plans.too_many_for_demo(f"more than {plans.DEMO_PICTURES} pictures")
    return 3 if tally.errors or output.errors else 0


def remark(plan: Plan, screen: Screen) -> None:
    """Say what may surprise about the answers, before they are waited for."""
    if plan.takes_demo_unasked:
        screen.info(
            f"{DEMO}, the built-in model, answers: it knows only drawings of coloured shapes; "
            f"name {plans.REAL_MODEL}"
        )
    if "-" in plan.names and is_terminal(sys.stdin):
        screen.info("reading paths from the terminal, one on each line; Ctrl-D ends them")
    chosen = plan.options.answering
    if chosen.temperature == 0 and (chosen.top_p < 1 or chosen.top_k):
        screen.info("--top-p and --top-k change nothing without a --temperature")
    if plan.question.has_choices and (chosen.temperature or chosen.max_new_tokens):
        screen.info("--temperature and --max-new-tokens change nothing where answers are picked")
    if plan.question.task == "segment" and plan.mask_decoder is None:
        screen.info(
            "masks stay codes, as no decoder is named: --mask-decoder FILE turns them into pixels",
            hint=f"what PaliGemma was trained with: {FETCH_DECODER}",
        )


def load_model(plan: Plan, screen: Screen, checkpoint: Checkpoint | None = None) -> Engine:
    """The model, loaded: found first unless it was, as a download shows its own progress."""
    chosen, masks = plan.options.model, plan.mask_decoder
    if checkpoint is None:
        checkpoint = find(chosen.model or DEMO, chosen.revision, progress=Downloads(screen))
    adapter = None
    if chosen.adapter is not None:
        adapter = find(chosen.adapter, kind="adapter", progress=Downloads(screen))
    check_max_new_tokens(plan.question, read_config(checkpoint.folder).max_answer_tokens)
    with screen.status(f"loading {checkpoint.name}"):
        from pgcli.engine.loader import load  # torch, which takes a second

        engine = load(
            checkpoint,
            adapter=adapter,
            masks=None if masks is None else Path(masks),
            device=chosen.device,
            dtype=chosen.dtype,
            batch_size=chosen.batch_size,
            quantize=chosen.quantize,
        )
    if chosen.device == "auto" and str(engine.device) == "cpu":
        warn_unused_gpu(screen)
    return engine


def answered(
    plan: Plan,
    engine: Engine,
    items: Iterable[Item],
    output: RunOutput,
    beside: RowHooks,
    screen: Screen,
) -> Tally:
    """Run, with the progress shown. A run cut short says what is left of it."""
    question = plan.question
    progress = screen.progress(question.task, plan.rows, initial=output.rows)

    def refuse(picture: DecodedImage, prompt: str) -> Answer:
        return error_answer(picture, prompt, task=question.task, model=engine.label)

    def save(answer: Answer) -> None:
        beside.draw(answer)
        output.sink.save(answer)

    drain = GracefulShutdown(
        partial(screen.info, "finishing what is under way; again to quit at once"),
        lambda: screen.info(progress.line()),
        pipes=plan.options.output.output == "-",
    )
    tolerance = plan.options.running.tolerance
    if output.state is not None:
        output.state.start(plan.rows, lambda: drain.paused_seconds)
    watching = Watching(progress, OomNotice(engine, screen.info, output.state), tolerance, drain)
    undrawn = None if output.ledger is None else RowHook(output.ledger, beside)
    try:
        with drain, progress, beside, output.sink:
            tally = run(
                beside.watch(items),
                look(plan, engine.spec, drain.asked, goes_on=output.goes_on),
                asking(plan, engine, drain.asked),
                save,
                refuse,
                resume_log=undrawn,
                callback=watching,
            )
            if drain.signum is not None:
                raise Interrupted(drain.signum)
            tolerance.check_share(tally)
            if undrawn is not None:
                insist_on_as_many(plan, output, undrawn.rows_seen)
            if not tally.rows and not output.rows:  # only standard input turns out empty this late
                raise NoInputError(
                    "nothing came on standard input",
                    hint="pipe in a path or a JSON object on each line, or name a folder",
                )
        if drain.signum is not None:  # it came when all was done
            raise Interrupted(drain.signum)
        return tally
    except (BrokenPipeError, NoInputError, OutputExists):  # the same command would end so again
        raise
    except BaseException as problem:
        if not (isinstance(problem, Interrupted) and problem.signum == SIGPIPE):
            rows = progress.done
            screen.info(summary.interrupted_notice(plan.options.output.output, rows, output.state))
        raise


def look(plan: Plan, spec: ImageSpec, stopped: Callable[[], bool], *, goes_on: bool) -> Decode:
    """How pictures are looked at: ahead of the model, unless they are few.

    A run that goes on has another process look at any number: the one before it may have died of a
    picture, which then is an error row. So has one that reads addresses, where anybody's may be.
    """
    from PIL import Image

    from pgcli import images, workers

    Image.MAX_IMAGE_PIXELS = None  # this process is ours, and --max-pixels is the limit that counts

    chosen = plan.options.input
    spec = replace(spec, fast_decode=chosen.fast_decode)
    return partial(
        workers.prefetch,
        decode=images.ImageDecoder(spec, limits(plan)),
        workers=chosen.workers,
        total=None if goes_on or plan.url_reader else plan.pictures,
        stopped=stopped,
        fetcher=plan.url_reader,
    )


def limits(plan: Plan) -> ImageLimits:
    """The largest pictures that are read."""
    from pgcli.images import ImageLimits

    most = plan.options.input.max_pixels
    return ImageLimits() if most is None else ImageLimits(max_pixels=most)


def asking(plan: Plan, engine: Engine, stopped: Callable[[], bool]) -> Ask:
    """How the model is asked: the task, and how its answers are drawn."""
    from pgcli.engine.sampler import Sampling

    chosen, question = plan.options.answering, plan.question
    return partial(
        engine.ask,
        question=question,
        sampling=Sampling(
            temperature=chosen.temperature, top_p=chosen.top_p, top_k=chosen.top_k, seed=chosen.seed
        ),
        stopped=stopped,
    )
