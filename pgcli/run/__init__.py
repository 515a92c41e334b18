"""One run, whoever starts it: its request, and what computes and saves its rows.

Python sets the attribute `run` of `pgcli` to this package once a module in it is imported. So that
`pgcli.run(...)` works before and after, the package can be called: it calls `pgcli.runs.run`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that is also the function of its name."""

    @property
    def __wrapped__(self) -> Any:
        """The function, for `inspect.signature` and the help of notebooks."""
        return import_module("pgcli.runs").run

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.__wrapped__(*arguments, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = CallablePackage
