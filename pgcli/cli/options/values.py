"""Parsers of option values; an invalid value raises typer.BadParameter."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NewType

import typer

from pgcli import regions
from pgcli.bench.settings import SCOPES, Scope
from pgcli.errors import UsageError
from pgcli.regular_file import read_text

DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")
DTYPES = ("auto", "bfloat16", "float32")

# named types, as Typer treats a plain tuple as an option with several values
Columns = NewType("Columns", tuple[str, ...])
NO_COLUMNS = Columns(())
BatchSizes = NewType("BatchSizes", tuple[int, ...])
AUTO_SIZES = BatchSizes(())
Span = NewType("Span", tuple[int, int])
Scopes = NewType("Scopes", tuple[Scope, ...])
ALL_SCOPES = Scopes(SCOPES)
Region = NewType("Region", tuple[float, float, float, float])
MaxErrors = NewType("MaxErrors", tuple[int | None, float | None])


def number(least: float, most: float = 1e18, *, above: bool = False) -> Callable[[Any], Any]:
    """A parser of numbers from `least` (or above it) to `most`, whole numbers if `least` is one."""
    kind, noun = (int, "a whole number") if isinstance(least, int) else (float, "a number")
    bounds = f"above {least:g}" if above else f"of {least:g}"
    if most < 1e18:
        bounds += f" to {most:g}"
    elif not above:
        bounds += " or more"

    def read(text: str | float) -> float:
        try:
            value = kind(text)
        except (ValueError, OverflowError):
            raise typer.BadParameter(f"{text!r} is not {noun}") from None
        if not least <= value <= most or (above and value == least):
            raise typer.BadParameter(f"{text!r} is not {noun} {bounds}")
        return value

    return read


def batch_size(text: str) -> int | None:
    """The rows in one batch; None for `auto`."""
    if text == "auto":
        return None
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is neither auto nor a whole number of 1 or more")
    return int(text)


def count_or_share(text: str | float) -> float:
    """A number of steps, `N`, or a share of all of them, `P%`, as a value below 1."""
    if isinstance(text, float):
        return text  # the default
    if text.endswith("%"):
        return min(share(text), 0.999_999)
    return float(whole_number(text))


def engines(text: str) -> int | None:
    """The number of engine processes; None for `auto`."""
    if text == "auto":
        return None
    if not re.fullmatch(r"[0-9]{1,3}", text) or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is neither auto nor a whole number from 1 to 999")
    return int(text)


def max_errors(text: str | MaxErrors) -> MaxErrors:
    """The number of error rows that a run allows, `N`, or their share of all rows, `P%`."""
    if isinstance(text, tuple):
        return text  # the default
    if text.endswith("%"):
        return MaxErrors((None, share(text)))
    return MaxErrors((whole_number(text), None))


def share(text: str) -> float:
    """A percentage, `P%`, as a number of 0 to 1."""
    try:
        return float(number(0.0, 100.0)(text.removesuffix("%"))) / 100
    except typer.BadParameter:
        raise typer.BadParameter(f"{text!r} is not a percentage of 0% to 100%") from None


def whole_number(text: str) -> int:
    """A number of 0 or more where a percentage may be given as well."""
    try:
        return int(number(0)(text))
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is neither a whole number of 0 or more nor a percentage such as 5%"
        ) from None


def batch_sizes(text: str | BatchSizes) -> BatchSizes:
    """Batch sizes separated by commas, sorted and without repeats; empty for `auto`."""
    if isinstance(text, tuple):
        return text  # the default
    sizes = {batch_size(part.strip()) for part in text.split(",")}
    if None in sizes and len(sizes) > 1:
        raise typer.BadParameter(f"{text!r} is neither auto nor a list of whole numbers: 1,8,64")
    return BatchSizes(tuple(sorted(size for size in sizes if size is not None)))


def span(text: str) -> Span:
    """A number of tokens, or the bounds of a random one."""
    found = re.fullmatch(r"([1-9]\d{0,4})(?:-([1-9]\d{0,4}))?", text, re.ASCII)
    if not found or int(found[1]) > int(found[2] or found[1]):
        raise typer.BadParameter(f"{text!r} is neither a number of tokens nor a span such as 4-64")
    return Span((int(found[1]), int(found[2] or found[1])))


def scopes(text: str | Scopes) -> Scopes:
    """Benchmark scopes separated by commas, in the order of SCOPES."""
    if isinstance(text, tuple):
        return text  # the default
    asked = {name.strip() for name in text.split(",")}
    if not asked <= set(SCOPES):
        raise typer.BadParameter(f"{text!r} is not a list of {', '.join(SCOPES)}")
    return Scopes(tuple(name for name in SCOPES if name in asked))


def device(text: str) -> str:
    """A device name. Whether this machine has the device is checked when the model is loaded."""
    if not DEVICE.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not auto, cpu, cuda, cuda:N or mps")
    return text


def dtype(text: str) -> str:
    """A dtype name. float16 is refused."""
    if text in ("float16", "fp16", "half"):
        raise typer.BadParameter(
            f"{text} cannot hold Gemma's activations, which overflow it; bfloat16 is as small"
        )
    if text not in DTYPES:
        raise typer.BadParameter(f"{text!r} is not auto, bfloat16 or float32")
    return text


def region(text: str) -> Region:
    """A box that is not empty: xmin, ymin, xmax and ymax in pixels."""
    try:
        return Region(regions.parse_region(text))
    except ValueError as problem:
        raise typer.BadParameter(f"{text!r} is {problem}") from problem


def columns(text: str | Columns) -> Columns:
    """Column names, separated by commas."""
    if isinstance(text, tuple):
        return text  # the default
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise typer.BadParameter(f"{text!r} is not a list of columns such as a,b")
    return Columns(names)


def lines(file: str, *, noun: str = "prompt") -> list[str]:
    """The lines of a text file that are not blank. Raises UsageError."""
    try:
        text = read_text(file, "utf-8-sig")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8"
        raise UsageError(
            f"{file} cannot be read: {reason}", hint=f"name a text file with a {noun} on each line"
        ) from problem
    found = [line.strip() for line in text.split("\n") if line.strip()]
    if not found:
        raise UsageError(f"{file} has no {noun}s", hint="write one on each line")
    return found
