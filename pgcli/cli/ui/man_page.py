"""The manual page, made from the help of all commands, for `pgcli --man`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from rich.text import Text

from pgcli import __version__

TITLE = 'PGCLI 1 "" "pgcli {version}" "User Commands"'


def man_page(context: typer.Context) -> str:
    """The page of a program, in the macros of man(7)."""
    group: Any = context.command
    contexts = [
        typer.Context(command, info_name=name, parent=context)
        for name, command in group.commands.items()
    ]
    shared = shared_options([one for one in contexts if is_answering(one)])
    lines = [
        f".TH {TITLE.format(version=__version__)}",
        ".SH NAME",
        rf"pgcli \- {roff(paragraphs(group.help)[0].rstrip('.'))}",
        ".SH SYNOPSIS",
        *(synopsis(one) for one in contexts),
        ".SH DESCRIPTION",
        *text_lines(group.help),
        ".SH COMMANDS",
        *(line for one in contexts for line in command_lines(one, shared)),
        ".SH OPTIONS OF ANSWERING COMMANDS",
        *option_lines(shared.values(), contexts[0]),
        ".SH ENVIRONMENT AND EXIT STATUS",
        *text_lines(group.epilog),
    ]
    return "\n".join(lines) + "\n"


def is_answering(context: typer.Context) -> bool:
    """Whether the command makes rows of sources, some of which may have errors."""
    return {"sources", "retry_errors"} <= {param.name for param in context.command.params}


def shared_options(contexts: Sequence[typer.Context]) -> Mapping[str, Any]:
    """The options that all of these commands have, by name."""
    first, *others = ({param.name: param for param in options(one)} for one in contexts)
    return {name: param for name, param in first.items() if all(name in one for one in others)}


def options(context: typer.Context) -> list[Any]:
    """The options of a command that its help shows."""
    params: list[Any] = context.command.get_params(context)
    return [p for p in params if p.param_type_name == "option" and not p.hidden]


def synopsis(context: typer.Context) -> str:
    """The usage line of a command."""
    words = context.command.collect_usage_pieces(context)
    return f".B {context.command_path}\n{roff(' '.join(words))}\n.br"


def command_lines(context: typer.Context, shared: Mapping[str, Any]) -> Iterator[str]:
    """A command's section: its help, its examples and the options that are its own."""
    yield f".SS {context.command_path}"
    yield from text_lines(context.command.help)
    takes_shared = is_answering(context)
    own = [p for p in options(context) if not takes_shared or p.name not in shared]
    yield from option_lines(own, context)
    if takes_shared:
        yield ".PP\nThe options of answering commands follow below."


def option_lines(params: Any, context: typer.Context) -> Iterator[str]:
    """A paragraph for each option: names, value, help, default and variable."""
    for param in params:
        names = ", ".join(rf"\fB{roff(name)}\fR" for name in param.opts)
        value = param.display_type_rich(context)
        yield ".TP"
        yield f"{names} \\fI{roff(value)}\\fR" if value else names
        text = Text.from_markup(param.help or "").plain
        if param.show_default and param.default not in (None, False, [], ()):
            text += f" [default: {param.default}]"
        yield roff(text + (f" [variable: {param.envvar}]" if param.envvar else ""))


def text_lines(help: str | None) -> Iterator[str]:
    """Paragraphs of a help text; its examples are not filled."""
    for paragraph in paragraphs(Text.from_markup(help or "").plain):
        if paragraph.startswith("$ "):
            yield ".PP\n.nf\n" + "\n".join(map(roff, paragraph.splitlines())) + "\n.fi"
        else:
            yield ".PP\n" + roff(" ".join(paragraph.split()))


def paragraphs(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


def roff(text: str) -> str:
    """The text with what has a meaning in roff escaped."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", escaped)
