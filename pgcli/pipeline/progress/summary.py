"""What a run did: its summary as facts, as one JSON object, and the commands to run next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pgcli import __version__
from pgcli.inputs.paths import url_scheme
from pgcli.output import FOLDER, load_format
from pgcli.output.lines import LineFormat
from pgcli.pipeline.progress.tally import Tally
from pgcli.printable import encodable
from pgcli.stores.urls import without_credentials
from pgcli.wording import count, duration

if TYPE_CHECKING:
    from pgcli.pipeline.model import EngineInfo
    from pgcli.pipeline.request import RunRequest

MAX_COMMAND_LENGTH = 300  # characters of a command that is shown to be copied
STAGES = ("vision", "prefill", "decode")


@dataclass
class Summary:
    """What is known of a run; it grows until the run ends, however that is."""

    request: RunRequest
    started: str = field(default_factory=lambda: utc_now())
    input_rows: int | None = None
    images: int | None = None
    engine: EngineInfo | None = None
    engines: int = 1
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    loading_seconds: float = 0.0
    hits: int = 0
    prompts: int = 0
    limits: str = ""
    input_notes: Sequence[tuple[str, str]] = ()
    hook_facts: Sequence[tuple[str, str]] = ()
    exit_code: int = 0
    error: str | None = None
    hint: str | None = None

    @property
    def unit(self) -> str:
        """What the items are."""
        return "texts" if self.request.question.embeds_texts else "images"

    def values(self) -> dict[str, Any]:
        """All that is known, as one JSON object. Times are in seconds."""
        output, tally, info = self.request.output.output, self.tally, self.engine
        rate = tally.seconds or 1e-9
        return {
            "pgcli": __version__,
            "command": self.request.question.task,
            "output": None if output == "-" else encodable(without_credentials(output)),
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "started": self.started,
            "ended": utc_now(),
            "exit_code": self.exit_code,
            "error": self.error and without_credentials(self.error),
            "hint": self.hint and without_credentials(self.hint),
            "input_rows": self.input_rows,
            "rows_before": tally.rows_before,
            "errors_before": dict(tally.errors_before),
            "rows": tally.rows,
            "errors": dict(tally.errors),
            "images": tally.images,
            "tokens": tally.tokens,
            "truncated": tally.truncated,
            "rows_per_second": round(tally.rows / rate, 3),
            "tokens_per_second": round(tally.tokens / rate, 3),
            "seconds": {
                "total": round(self.seconds, 3),
                "loading": round(self.loading_seconds, 3),
                "answering": round(tally.seconds, 3),
                "waited_for_images": round(tally.waited_seconds, 3),
                **{name: round(getattr(tally, f"{name}_ms") / 1000, 3) for name in STAGES},
            },
            "model": info and info.label,
            "device": info and info.device,
            "dtype": info and info.dtype,
            "batch_size": info and info.batch_size,
        }

    def lines(self) -> tuple[str, str]:
        """What was done, and how fast by which model: a sentence each."""
        return self._rows(), self._speed()

    def notes(self) -> list[tuple[str, str]]:
        """What the rows are, and what was made beside them, as far as it was asked for."""
        return [*(self.engine.facts if self.engine else ()), *self.hook_facts]

    def facts(self) -> Iterator[tuple[str, str]]:
        """All of it: rows, speed, times by stage, model and versions."""
        tally, info = self.tally, self.engine
        assert info is not None
        yield "done", self._rows()
        seconds = tally.seconds or 1e-9
        speed = f"{rate(tally.images / seconds)} {self.unit}/s"
        yield "speed", speed + (f", {tally.tokens / seconds:,.0f} tokens/s" if tally.tokens else "")
        loading = duration(self.loading_seconds)
        yield "time", f"{duration(self.seconds)}, of which {loading} to load the model"
        if self.unit == "images":
            yield "model busy", self._busy()
            yield "model waited", f"{duration(tally.waited_seconds)} for images"
        size = info.batch_size
        most = "row by row" if size == 1 else f"up to {size} rows at once"
        yield "model", f"{info.label} on {info.device} in {info.dtype}, {most}"
        if self.engines > 1:
            yield "engines", count(self.engines, "process")
        if self.hits:
            yield "images reused", f"{self.hits:,} of {self.prompts:,} prompts"
        if self.limits:
            yield "memory ran out", self.limits
        from pgcli.pipeline.settings import versions

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
            text += f", beside {before:,} from before"
        if errors:
            codes = ", ".join(f"{code} {number:,}" for code, number in errors.most_common())
            text += f", {errors.total():,} with errors: {codes}"
        if tally.truncated:
            text += f"; {tally.truncated:,} with a text longer than the model's input, truncated"
        return text + "".join(f"; {name} {what}" for name, what in self.input_notes)

    def _speed(self) -> str:
        tally, info = self.tally, self.engine
        assert info is not None
        loading = f"{duration(self.loading_seconds)} to load {info.label}"
        engines = f", {self.engines} engines" if self.engines > 1 else ""
        where = f"on {info.device} in {info.dtype}{engines}"
        text = f"{duration(self.seconds)}, of which {loading} {where}"
        speed = rate(tally.images / (tally.seconds or 1e-9))
        return f"{speed} {self.unit}/s; {text}" if tally.images > 1 else text

    def _busy(self) -> str:
        columns = self.request.question.columns
        times = {name: getattr(self.tally, f"{name}_ms") / 1000 for name in STAGES}
        times = {name: seconds for name, seconds in times.items() if f"{name}_ms" in columns}
        parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in times.items())
        return f"{duration(sum(times.values()))}: {parts}"

    def next_command(self) -> str:
        """What to type next, where there is something."""
        output = self.request.output.output
        if output == "-":
            return "-o rows.jsonl saves the rows, and pgcli view rows.jsonl shows them"
        if url_scheme(output) is not None or self.unit == "texts":
            return ""
        if self.tally.all_errors:
            return f"to ask the rows with errors again: {retry_command(self.request)}"
        is_seen = self.request.output.view is not None or self.request.output.format == "text"
        return "" if is_seen else f"pgcli view {shlex.quote(output)}"


def retry_command(request: RunRequest) -> str:
    """The command that asks rows with errors again.

    It is described where it is long, has a password, or reads standard input.
    """
    words = [word for word in request.arguments if word not in ("--overwrite", "--retry-errors")]
    if any(word.startswith(("--ray", "--shard")) for word in words):
        return "the same command with --retry-errors, without --ray and --shard"
    command = shlex.join(["pgcli", *words[:1], "--retry-errors", *words[1:]])
    has_secret = any(word != without_credentials(word) for word in words)
    is_piped = "-" in request.sources
    if not words or len(command) > MAX_COMMAND_LENGTH or has_secret or is_piped:
        return "the same command with --retry-errors"
    return command


def interrupted_notice(output: str, saved: int, *, is_resumable: bool, is_beside: bool) -> str:
    """Where the rows of an interrupted run are, and how to resume it.

    With `is_beside` the state folder has some of them, which are not in the output yet.
    """
    rows = count(saved, "row")
    if output == "-":
        return f"stopped after {rows}"
    if not saved:
        return "stopped before the first row"
    where = f"saved in {output}"
    if is_beside:
        where = f"saved in {output} and {output.rstrip('/')}.pgcli/"
    is_appended = output.endswith(FOLDER) or isinstance(load_format(output), LineFormat)
    if is_beside and not is_appended:
        where = f"saved in {output}.pgcli/; {output} appears when it is complete"
    resumes = "; the same command resumes the run" if is_resumable else ""
    return f"stopped after {rows}, {where}{resumes}"


def rate(per_second: float) -> str:
    """`0.83`, `12.3`, `1,234`: a rate with what digits mean something."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
