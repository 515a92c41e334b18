"""The summary of a run: as facts, as one JSON object, and the next command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from pgcli.device.machine import processors
from pgcli.rows import CUT_ANSWERS
from pgcli.run.progress.tally import Tally
from pgcli.stores.urls import url_scheme, without_credentials
from pgcli.text import count, duration, encodable, note
from pgcli.version import __version__

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest
    from pgcli.run.workers.work import EngineInfo

#: From so many images on, the summary says how long the model waited for them, above this share.
MIN_IMAGES, WAITED_SHARE = 100, 0.2
STAGES = ("vision", "prefill", "decode")


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
        from pgcli.images.pool import DEFAULT_WORKERS

        cores = int(processors())
        default = DEFAULT_WORKERS if self.engine and self.engine.device == "cpu" else cores
        workers = default if options.workers is None else options.workers
        helps = "more --workers" if workers < cores - 1 else "more cores"
        helps = helps if options.fast_decode else f"--fast-decode or {helps}"
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
        from pgcli.run.settings import versions

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


def interrupted_notice(output: str, saved: int, *, is_resumable: bool) -> str:
    """How many rows an interrupted run saved, and how to resume it."""
    rows = count(saved, "row")
    if output == "-":
        return f"stopped after {rows}"
    if not saved:
        return "stopped before the first row"
    if is_resumable:
        return f"stopped with {rows} saved; the same command resumes the run"
    return f"stopped with {rows} saved in {output}"


def rate(per_second: float) -> str:
    """A rate with three significant digits: `0.83`, `12.3`, `1,234`."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
