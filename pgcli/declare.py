"""Options: each is declared once, as a field of a record, and read from text or from Python."""

from __future__ import annotations

import math
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pgcli.errors import UsageError
from pgcli.text import listed

Record = TypeVar("Record")
#: The default of an option that has to be given.
REQUIRED: Any = MISSING
#: Numbers have less than this; it also refuses infinity.
LARGEST = 1e18
#: Words for a flag in environment variables and the configuration file.
TRUTH = {"1": True, "true": True, "yes": True, "on": True, "t": True, "y": True}
TRUTH |= {"0": False, "false": False, "no": False, "off": False, "f": False, "n": False}

#: The options with an environment variable: settings of a machine or a session, none of which
#: changes the question, or the files that are written or deleted.
VARIABLES = frozenset(
    "model revision adapter device dtype quantize batch_size engines workers allow_urls "
    "config log_format no_progress quiet debug".split()
)
ENV_PREFIX = "PGCLI_"
#: Values of options that name something, which must not be empty; the current folder is ".".
NAMED = frozenset({"DIR", "FILE", "MODEL", "PAGE", "PATH", "SOURCE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option: its declaration, and the name, type and default of its field.

    `short` are names beside `--name`. A `repeat`ed option has a list of values; with `commas`, one
    text may hold several. `choices` are offered by the completion of shells, and checked unless
    `parse` reads the value. With `auto`, this word stands for None. An `own` option means something
    else in other commands, so that neither the environment nor the top of the configuration file
    sets it. An option that `affects_rows` changes rows. `--help` omits `seldom` needed options,
    `--help --all` shows them.
    """

    help: str
    panel: str
    short: tuple[str, ...] = ()
    min: float | None = None
    max: float | None = None
    above: bool = False
    choices: Sequence[str] | Callable[[], Sequence[str]] = ()
    metavar: str | None = None
    parse: Callable[[Any], Any] | None = None
    auto: bool = False
    repeat: bool = False
    commas: bool = False
    own: bool = False
    affects_rows: bool = True
    seldom: bool = False
    default_text: str = ""
    name: str = ""
    kind: type = str
    default: Any = None

    @property
    def flag(self) -> str:
        """Its long name on the command line."""
        return f"--{self.key}"

    @property
    def shown_flag(self) -> str:
        """Its name in messages: `-k` for an option that has one letter."""
        return f"-{self.name}" if len(self.name) == 1 else self.flag

    @property
    def key(self) -> str:
        """Its name in the configuration file: `from_` is `from` there."""
        return self.name.rstrip("_").replace("_", "-")

    @property
    def variable(self) -> str | None:
        """The environment variable that sets it; None for most options."""
        return None if self.own or self.name not in VARIABLES else ENV_PREFIX + self.name.upper()

    @property
    def shown_default(self) -> str:
        """Its default in the help; empty without a default and for flags."""
        if self.default is REQUIRED:
            return "required"
        if self.default_text or self.default in (None, ()) or self.default is False:
            return self.default_text or ("auto" if self.auto else "")
        return f"{self.default:g}" if self.kind is float else str(self.default)

    def read(self, value: object) -> Any:
        """The value, from text or from Python. Raises ValueError with what it must be."""
        if not self.repeat:
            return self._read_single(value)
        if isinstance(value, str | os.PathLike):
            values: Iterable[object] = self._split(os.fspath(value))
        elif isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
            values = value
        else:
            raise ValueError(f"must be text or a list of texts, not {value!r}")
        return tuple(map(self._read_single, values))

    def _split(self, text: str | bytes) -> list[str]:
        text = os.fsdecode(text)
        if not self.commas:
            return [text]
        parts = [part.strip() for part in text.split(",")]
        if not all(parts):
            raise ValueError(f"must be a list of names such as a,b, not {text!r}")
        return parts

    def _read_single(self, value: object) -> Any:
        if self.auto and isinstance(value, str) and value == "auto":
            return None
        if self.parse is not None:
            return self.parse(value)
        if self.kind is bool:
            return truth(value)
        if self.kind in (int, float):
            return self._read_number(value)
        if isinstance(value, os.PathLike):
            value = os.fsdecode(value)
        if not isinstance(value, str):
            raise ValueError(f"must be text, not {value!r}")
        if not value and self.metavar in NAMED:
            raise ValueError("must not be empty")
        if self.choices and not callable(self.choices) and value not in self.choices:
            choices = listed(self.choices, len(self.choices))
            raise ValueError(f"must be one of {choices}, not {value!r}")
        return value

    def _read_number(self, value: Any) -> float:
        is_whole, auto = self.kind is int, "auto or " if self.auto else ""
        wanted = str | Integral if is_whole else str | Real
        try:
            if isinstance(value, bool) or not isinstance(value, wanted):
                raise ValueError
            number: float = self.kind(value)
            if not math.isfinite(number):
                raise ValueError
        except (ValueError, OverflowError):
            noun = "a whole number" if is_whole else "a number"
            raise ValueError(f"must be {auto}{noun}, not {value!r}") from None
        least = -LARGEST if self.min is None else self.min
        most = LARGEST if self.max is None else self.max
        if not least <= number <= most or (self.above and number == least):
            raise ValueError(f"must be {auto}{self._bounds}, not {value!r}")
        return number

    @property
    def _bounds(self) -> str:
        """The numbers that it accepts."""
        if self.min is None:
            return "a finite number"
        if self.max is not None and not self.above:
            return f"between {self.min:g} and {self.max:,g}"
        bounds = f"above {self.min:g}" if self.above else f"at least {self.min:g}"
        return bounds if self.max is None else f"{bounds} and at most {self.max:,g}"


def opt(
    help: str,
    *,
    panel: str,
    default: Any = None,
    repeat: bool = False,
    **more: Any,
) -> Any:
    """A field that is an option; `more` are further fields of `Option`."""
    option = Option(help=help, panel=panel, repeat=repeat, **more)
    if repeat and default is None:
        default = ()
    return field(default=default, metadata={"option": option})


def same(record: type, name: str, help: str = "", **more: Any) -> Any:
    """A field that is the option of another record, with another `help` or more, if given."""
    (declaration,) = (f for f in fields(record) if f.name == name)
    option: Option = declaration.metadata["option"]
    option = replace(option, help=help or option.help, **more)
    return field(default=declaration.default, metadata={"option": option})


#: The options of each record, once they were asked for.
_OPTIONS: dict[type, tuple[Option, ...]] = {}


def options_of(record: type) -> tuple[Option, ...]:
    """The options that the fields of a record declare."""
    if record in _OPTIONS:
        return _OPTIONS[record]
    hints, options = get_type_hints(record), []
    for declared in fields(record):
        if (option := declared.metadata.get("option")) is None:
            continue
        name, hint = declared.name, hints[declared.name]
        if get_origin(hint) in (Union, types.UnionType):
            (hint, *_) = (kind for kind in get_args(hint) if kind is not types.NoneType)
        choices = get_args(hint) if get_origin(hint) is Literal else option.choices
        kind = hint if hint in (bool, int, float) else str
        default = declared.default
        options.append(replace(option, name=name, kind=kind, choices=choices, default=default))
    return _OPTIONS.setdefault(record, tuple(options))


def parse_value(option: Option, value: object, source: str) -> Any:
    """The value of an option, from text or from Python.

    Raises UsageError that names the source: the keyword, variable or key of a file.
    """
    try:
        return option.read(value)
    except ValueError as problem:
        raise UsageError(f"{source} {problem}", hint=help_of(option)) from None


def parse_keywords(
    records: Iterable[type],
    keywords: Mapping[str, object],
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """The values of keyword arguments of Python, by the names of options; None leaves one out.

    Raises UsageError for a name that no record has, with the closest one, and for a wrong value.
    """
    options = {
        option.name: option
        for record in records
        for option in options_of(record)
        if option.name not in without and (only is None or option.name in only)
    }
    for name in keywords:
        if name not in options:
            close = get_close_matches(name, options, n=1)
            names = f"did you mean {close[0]}?" if close else f"one of {', '.join(sorted(options))}"
            raise UsageError(f"there is no option {name}", hint=names)
    return {
        name: parse_value(options[name], value, name)
        for name, value in keywords.items()
        if value is not None
    }


def build(record: type[Record], values: Mapping[str, Any]) -> Record:
    """The record, made of the values that it has fields for.

    Raises UsageError where a required one is missing.
    """
    options = options_of(record)
    for option in options:
        if option.default is REQUIRED and option.name not in values:
            raise UsageError(f"{option.name} is missing", hint=help_of(option))
    names = [option.name for option in options if option.name in values]
    return record(**{name: values[name] for name in names})


def help_of(option: Option) -> str:
    """The option and its help, as a hint."""
    has_value = option.kind is not bool and len(option.name) > 1
    return f"<{option.shown_flag}{'=' * has_value}>: {option.help.rstrip('.')}"


def truth(value: object) -> bool:
    """A truth value, or the word for one."""
    if isinstance(value, bool):
        return value
    word = TRUTH.get(value.strip().lower()) if isinstance(value, str) else None
    if word is None:
        raise ValueError(f"must be true or false, not {value!r}")
    return word
