"""One run, whoever starts it: its request, and what computes and saves its rows."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """This package under its other name: importing it would hide the function `pgcli.run`."""

    def __call__(self, *values: Any, **keywords: Any) -> Any:
        return import_module("pgcli.api.runs").run(*values, **keywords)


sys.modules[__name__].__class__ = CallableModule
