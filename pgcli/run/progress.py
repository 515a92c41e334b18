"""The progress of a run: its messages, its counts, and its summary."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from signal import SIGPIPE
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from pgcli.errors import NoInputError, OutputChanged, OutputExists, OutputFailed, TooManyErrors
from pgcli.records import Answer
from pgcli.rows import CUT_ANSWERS
from pgcli.run import events
from pgcli.run.events import GracefulShutdown, Interrupted
from pgcli.run.state.record import versions
from pgcli.stores.urls import url_scheme, without_credentials
from pgcli.text import count, duration, encodable, note
from pgcli.version import __version__

if TYPE_CHECKING:
    from pgcli.run.options import ErrorBudget
    from pgcli.run.request import RunRequest
    from pgcli.run.state.folder import State


@dataclass
class Tally:
    """The counts of a run so far.

    `rows_before` were saved by earlier runs, with `errors_before` by code. The model waited
    `waited_seconds` of the `seconds` of answering for images. `truncated` rows have a text longer
    than the model's input, and the limit of tokens `cut` answers. `hits` of the `prompts` reused
    the features of an image.
    """

    rows: int = 0
    rows_before: int = 0
    images: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    errors_before: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    truncated: int = 0
    cut: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    hits: int = 0
    prompts: int = 0
    last_errors: int = 0  # failed rows since the last answered row
    last_error: str = ""  # its description

    def count(self, row: Answer) -> None:
        """Add a saved row."""
        if row.error is None:
            self.last_errors = 0
        else:
            self.errors[row.error] += 1
            self.last_error = f"{row.id}: {row.error}: {row.error_message}"
            self.last_errors += 1
        self.rows += 1
        self.tokens += row.tokens or 0
        self.truncated += bool(row.truncated)
        self.cut += row.finish == "length"
        self.vision_ms += row.vision_ms or 0.0
        self.prefill_ms += row.prefill_ms or 0.0
        self.decode_ms += row.decode_ms or 0.0

    @property
    def counts(self) -> tuple[float, ...]:
        """Plain values in the order of ADDED, and the last errors, for another process to add."""
        return *(getattr(self, name) for name in ADDED), self.last_errors

    def add(self, counts: Sequence[float], errors: Sequence[Error]) -> None:
        """Add the counts of another process."""
        self.last_errors = int(counts[-1]) + (self.last_errors if len(errors) == counts[0] else 0)
        for code, self.last_error in errors:
            self.errors[code] += 1
        for name, value in zip(ADDED, counts, strict=False):
            setattr(self, name, getattr(self, name) + value)

    @property
    def all_errors(self) -> Counter[str]:
        """The failed rows of the output, by code."""
        return self.errors + self.errors_before


ADDED = (
    *("rows", "images", "tokens", "truncated", "cut", "waited_seconds"),
    *("vision_ms", "prefill_ms", "decode_ms", "hits", "prompts"),
)
#: The code of a failed row, and its description.
Error: TypeAlias = tuple[str, str]


#: As many consecutive error rows suggest a broken disk or model rather than broken images.
MAX_CONSECUTIVE_ERRORS = 50
#: The share of errors is checked from this number of rows on, and at the end.
MIN_ROWS_FOR_SHARE = 1000


def check_errors(tally: Tally, budget: ErrorBudget) -> None:
    """Raise TooManyErrors if the rows so far exceed the budget."""
    errors = tally.errors.total()
    if not errors:
        return
    if budget.stop_on_error:
        answered = tally.rows - errors
        raise TooManyErrors(
            f"stopped at the first error, after {answered:,} answered rows: {tally.last_error}",
            hint="repair or remove the image, or continue after errors: <--on-error record>",
        )
    if budget.max_errors is not None and errors > budget.max_errors:
        raise too_many(f"{errors:,} of {tally.rows:,} rows have errors")
    if tally.rows >= MIN_ROWS_FOR_SHARE:
        check_error_share(tally, budget)
    is_limited = budget.max_errors is not None or budget.max_share is not None
    if not is_limited and tally.last_errors >= MAX_CONSECUTIVE_ERRORS:
        raise TooManyErrors(
            f"stopped after {MAX_CONSECUTIVE_ERRORS} errors in a row, last {tally.last_error}",
            hint="check the disk, the paths and the model; the same command resumes, and "
            "<--max-errors 100%> allows any number of errors",
        )


def check_error_share(tally: Tally, budget: ErrorBudget) -> None:
    """Raise TooManyErrors if the share of errors exceeds the budget."""
    errors = tally.errors.total()
    if budget.max_share is not None and errors > budget.max_share * tally.rows:
        raise too_many(f"{errors / tally.rows:.1%} of {tally.rows:,} rows have errors")


def too_many(reason: str) -> TooManyErrors:
    return TooManyErrors(
        f"stopped because {reason}, more than <--max-errors=> allows",
        hint="raise <--max-errors=> and run the same command again to resume",
    )


#: From so many images on, the summary says how long the model waited for them, above this share.
MIN_IMAGES, WAITED_SHARE = 100, 0.2
STAGES = ("vision", "prefill", "decode")


@dataclass(frozen=True)
class EngineInfo:
    """The facts about a loaded model for the summary and the record of a run."""

    label: str
    device: str
    dtype: str
    batch_size: int
    model: dict[str, Any]
    facts: tuple[tuple[str, str], ...] = ()


@dataclass
class Summary:
    """The known facts about a run; they grow until it ends."""

    request: RunRequest
    started: str = field(default_factory=lambda: utc_now())
    input_rows: int | None = None
    images: int | None = None
    engine: EngineInfo | None = None
    engines: int = 1
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    loading_seconds: float = 0.0
    limits: str = ""
    input_notes: Sequence[tuple[str, str]] = ()
    hook_facts: Sequence[tuple[str, str]] = ()
    exit_code: int | None = None  # None during the run
    error: str | None = None
    hint: str | None = None

    @property
    def unit(self) -> str:
        """The name of the items."""
        return "texts" if self.request.question.embeds_texts else "images"

    def values(self) -> dict[str, Any]:
        """All known facts as one JSON object, which `owner.json` has, too. Times are in seconds."""
        output, tally, info = self.request.output.output, self.tally, self.engine
        seconds = {
            "total": self.seconds,
            "loading": self.loading_seconds,
            "answering": tally.seconds,
            "waited_for_images": tally.waited_seconds,
            **{stage: getattr(tally, f"{stage}_ms") / 1000 for stage in STAGES},
        }
        return {
            "pgcli": __version__,
            "command": self.request.question.task,
            "output": None if output == "-" else encodable(without_credentials(output)),
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "started": self.started,
            "ended": None if self.exit_code is None else utc_now(),
            "exit_code": self.exit_code,
            "error": self.error and without_credentials(self.error),
            "hint": without_credentials((self.hint if self.error else self.waiting) or "") or None,
            "input_rows": self.input_rows,
            "rows_before": tally.rows_before,
            "errors_before": dict(tally.errors_before),
            "rows": tally.rows,
            "errors": dict(tally.errors),
            "images": tally.images,
            "tokens": tally.tokens,
            "truncated": tally.truncated,
            "cut": tally.cut,
            "rows_per_second": round(self._per_second(tally.rows), 3),
            "tokens_per_second": round(self._per_second(tally.tokens), 3),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "model": info and info.label,
            "device": info and info.device,
            "dtype": info and info.dtype,
            "batch_size": info and info.batch_size,
        }

    def lines(self) -> tuple[str, str]:
        """Two sentences: the number of rows, and the speed and the model."""
        done, speed, time = (text for _, text in islice(self.facts(), 3))
        return done, f"{speed}; {time}" if self.tally.images > 1 else time

    @property
    def waiting(self) -> str:
        """What would help if the model waits for images; empty if it computes most of the time.

        It is also empty if images come over a network or from another program, which may be slow.
        """
        tally, options, seconds = self.tally, self.request.input, self.tally.seconds * self.engines
        busy = sum(getattr(tally, f"{stage}_ms") for stage in STAGES) / 1000
        waited = min(tally.waited_seconds, seconds - busy)  # a GPU may compute meanwhile
        is_fed = self.input_rows is None or options.allow_urls
        read = tally.rows - tally.errors.total()  # the others took no time of the decoders or model
        if is_fed or min(tally.images, read) < MIN_IMAGES or waited <= WAITED_SHARE * seconds:
            return ""
        helps = f"{'' if options.fast_decode else '--fast-decode, '}more --workers or more cores"
        return f"the model waited {waited / seconds:.0%} of the time for images: {helps}"

    def notes(self) -> list[tuple[str, str]]:
        """Facts about the model and the files of hooks, and a hint for more speed."""
        hints = [("hint", self.waiting)] if self.waiting else []
        return [*(self.engine.facts if self.engine else ()), *self.hook_facts, *hints]

    def facts(self) -> Iterator[tuple[str, str]]:
        """All facts: rows, speed, model, times by stage and versions."""
        tally, info, seconds = self.tally, self.engine, self.values()["seconds"]
        assert info is not None
        yield "done", self._rows()
        yield "speed", f"{rate(self._per_second(tally.images))} {self.unit}/s"
        loading = f"{duration(self.loading_seconds)} to load {info.label}"
        engines = f", {self.engines} engines" if self.engines > 1 else ""
        where = f"on {info.device} in {info.dtype}{engines}"
        yield "time", f"{duration(self.seconds)}, including {loading} {where}"
        yield "batch size", f"up to {count(info.batch_size, 'row')}"
        if tally.tokens:
            per_second = self._per_second(tally.tokens)
            yield "generated", f"{count(tally.tokens, 'token')}, {per_second:,.0f} tokens/s"
        if self.unit == "images":
            columns = self.request.question.columns
            stages = [stage for stage in STAGES if f"{stage}_ms" in columns]
            times = ", ".join(f"{stage} {duration(seconds[stage])}" for stage in stages)
            yield "model busy", f"{duration(sum(seconds[stage] for stage in stages))}: {times}"
            yield "model waited", f"{duration(tally.waited_seconds)} for images"
        if tally.hits:
            yield "images reused", f"{tally.hits:,} of {tally.prompts:,} prompts"
        if self.limits:
            yield "memory ran out", self.limits
        yield "versions", ", ".join(f"{name} {number}" for name, number in versions().items())
        yield from self.notes()

    def _rows(self) -> str:
        tally, output = self.tally, self.request.output.output
        errors, before = tally.errors, tally.rows_before
        text = count(tally.rows, "new row" if before else "row")
        if self.unit == "images" and tally.images < tally.rows:
            text += f" of {count(tally.images, 'image')}"
        if output != "-":
            text += f" in {output}"
        if before:
            text += f" ({before:,} saved before)"
        if errors:
            codes = ", ".join(f"{code} {number:,}" for code, number in errors.most_common())
            text += f", {errors.total():,} with errors: {codes}"
        if tally.truncated:
            text += f"; {tally.truncated:,} with a text truncated to the model's input length"
        if tally.cut:
            text += f"; {note(tally.cut, CUT_ANSWERS)}"
        return text + "".join(f"; {name} {what}" for name, what in self.input_notes)

    def _per_second(self, number: int) -> float:
        return number / (self.tally.seconds or 1e-9)

    def next_command(self) -> str:
        """The command to type next; empty if there is nothing to suggest."""
        output = self.request.output.output
        if output == "-":
            return "-o rows.jsonl saves the rows, and pgcli view rows.jsonl shows them"
        if url_scheme(output) is not None or self.unit == "texts":
            return ""
        if self.tally.all_errors:
            return "the same command with --retry-errors retries the failed rows"
        is_text = self.request.output.format == "text"
        return "" if is_text else f"pgcli view {shlex.quote(output)}"


def rate(per_second: float) -> str:
    """A rate with three significant digits: `0.83`, `12.3`, `1,234`."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


UPDATE_SECONDS = 0.2  # between two updates of the display


class RunProgress:
    """The messages and counts of a run in progress.

    A run with a resumable output has a `state`; its `owner.json` gets the counts.
    """

    state: State | None = None

    def __init__(self, request: RunRequest, on_event: events.OnEvent):
        self.request, self.show = request, on_event
        self.began = perf_counter()
        self.summary = Summary(request)
        self.tally: Tally = self.summary.tally
        self.limits: Callable[[], str] = str  # describes reduced batches of the loaded model
        self._budget = request.running.error_budget
        self._shutdown: GracefulShutdown | None = None
        self._shown_at = self._answering_began = 0.0

    def say(self, text: str, hint: str = "") -> None:
        """Show a message."""
        self.show(events.Message(text, hint))

    @contextmanager
    def stage(
        self, task: str, total: int | None = None, initial: int = 0, unit: str = ""
    ) -> Iterator[None]:
        """Show a stage during the block."""
        self.show(events.Stage(task, total, initial, unit))
        try:
            yield
        finally:
            self.show(events.StageEnd())

    @contextmanager
    def counting(self) -> Iterator[Callable[[int], None]]:
        """Show that the input is counted; yield what adds to the number."""
        counted = 0

        def add(number: int) -> None:
            nonlocal counted
            counted += number
            if self._is_due():
                self.show(events.Progress(counted))

        with self.stage("counting", unit=self.summary.unit):
            yield add

    @contextmanager
    def answering(self, *, loads: str = "") -> Iterator[None]:
        """Show progress and handle signals while rows are computed.

        If other processes load the model `loads` first, they do so until `begin_rows` is called.
        Raises Interrupted after a signal, once the rows in progress are saved.
        """
        self._shutdown = GracefulShutdown(
            lambda: self.say("finishing the rows in progress; press again to quit at once"),
            pipes=self.request.output.output == "-",
        )
        if self.state is not None:
            self.note_counts()
            self.state.owner.write()  # `pgcli status` knows the total from the beginning
        if loads:
            self._answering_began = perf_counter()
            self.show(events.Stage(f"loading {loads}"))
        else:
            self.begin_rows()
        try:
            with self._shutdown:
                yield
                self.show_rows()
                self._shutdown.raise_if_requested()
                check_error_share(self.tally, self._budget)
        finally:
            self.measure()
            self.show(events.StageEnd())

    def begin_rows(self) -> None:
        """Show the row count, and measure the rate from now on: the model is loaded."""
        self._answering_began = perf_counter()
        total, before = self.summary.input_rows, self.tally.rows_before
        self.show(events.Stage(self.request.question.task, total, before, "rows"))
        self.show(events.Progress(before, waits_for="reading the first images"))

    def should_stop(self) -> bool:
        """Whether a signal or a closed pipe ends the run."""
        return self._shutdown is not None and self._shutdown.should_stop()

    def update(self, row: Answer) -> None:
        """Show progress regularly, after a row was saved.

        Raises TooManyErrors, and OutputInUse if another command took the output over.
        """
        if self._is_due():
            self.show_rows()
        if row.error is not None:
            check_errors(self.tally, self._budget)

    def add(self, counts: Sequence[float], errors: Sequence[Error]) -> None:
        """Count saved rows of another process, and show progress like `update`."""
        self.tally.add(counts, errors)
        if self._is_due():
            self.show_rows()
        if errors:
            check_errors(self.tally, self._budget)

    def measure(self) -> None:
        """Update the durations of the run and of answering in the summary."""
        now = perf_counter()
        self.summary.seconds = now - self.began
        self.tally.seconds = now - self._answering_began

    def show_rows(self) -> None:
        """Show the number of saved rows."""
        self._shown_at = perf_counter()
        self.measure()
        if self.state is not None:
            self.note_counts()
            self.state.owner.check()
        self.show_limits(self.limits())
        rows, errors = self.tally.rows_before + self.tally.rows, self.tally.errors.total()
        self.show(events.Progress(rows, errors, details=self.summary.waiting))

    def show_limits(self, limits: str) -> None:
        """Say once that memory ran out and batches are smaller."""
        if limits and not self.summary.limits:
            self.say(f"memory ran out: {limits}; no row is lost")
        self.summary.limits = limits or self.summary.limits

    def note_counts(self) -> None:
        """Update the counts for `owner.json`."""
        assert self.state is not None
        self.state.owner.note(**self.summary.values())

    def report_interruption(self, problem: BaseException) -> None:
        """Say how many rows are saved, if answering has begun and somebody reads messages."""
        is_pipe = isinstance(problem, Interrupted) and problem.signum == SIGPIPE
        is_refused = isinstance(
            problem, BrokenPipeError | NoInputError | OutputExists | OutputChanged
        )
        if self._shutdown is None or is_pipe or is_refused:
            return
        saved, output = self.tally.rows_before + self.tally.rows, self.request.output.output
        rows, end = count(saved, "row"), f" saved in {output}"
        if self.state is not None:
            end = " saved; the same command resumes the run"
        notice = f"stopped after {rows}" if output == "-" else f"stopped with {rows}{end}"
        with suppress(OutputFailed):
            self.say(notice if saved or output == "-" else "stopped before the first row")

    def _is_due(self) -> bool:
        """Whether it is time to show progress."""
        is_due = perf_counter() - self._shown_at >= UPDATE_SECONDS
        if is_due:
            self._shown_at = perf_counter()
        return is_due
