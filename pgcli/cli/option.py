"""How options are declared."""

from __future__ import annotations

from typing import Any

import typer


def option(
    panel: str, *names: str, help: str, once: bool = True, own: bool = False, **more: Any
) -> Any:
    """An option. One with a long name can also be set by `PGCLI_<NAME>` and at the top of the
    configuration file, unless it is repeatable (not `once`) or `own`: it means something else in
    other commands. The file's table of a command sets all of its options.
    """
    long = [name.removeprefix("--") for name in names if name.startswith("--")]
    if long and once and not own:
        more["envvar"] = "PGCLI_" + long[0].replace("-", "_").upper()
    if choices := more.pop("choices", ()):
        more["autocompletion"] = choices if callable(choices) else lambda: list(choices)
    if default := more.pop("default", ""):  # in words, where the value is not readable
        more["show_default"] = False
        help += rf" [dim]\[default: {default}][/]"
    return typer.Option(*names, help=help, rich_help_panel=panel, show_envvar=False, **more)
