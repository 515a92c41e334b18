"""One run, whoever starts it: a request is made of options, and compared with its output.

Workers, in this process or others, answer ranges of the input's rows and send them back as lines.
The owner of the output's state saves these rows in order, so that the same command resumes the run.
"""

import sys
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """This package under its other name: importing it would hide the function `pgcli.run`."""

    def __call__(self, *values: Any, **keywords: Any) -> Any:
        return import_module("pgcli.api.runs").run(*values, **keywords)

    @property
    def __signature__(self) -> Signature:
        return signature(import_module("pgcli.api.runs").run)

    def __reduce__(self) -> Any:
        return import_module, (__name__,)


sys.modules[__name__].__class__ = CallableModule
