"""Options of the command line, a record for each panel of the help."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.cli.options.answering import Answering, Model
from pgcli.cli.options.input import Input
from pgcli.cli.options.output import Output
from pgcli.cli.options.running import Running
from pgcli.cli.options.shared import (
    MODELS,
    AllowPrivateHosts,
    AllowUrls,
    Debug,
    Device,
    Dtype,
    Quantize,
    Quiet,
    Revision,
    Session,
    Sources,
    models,
    option,
)

__all__ = [
    "MODELS",
    "AllowPrivateHosts",
    "AllowUrls",
    "Answering",
    "Debug",
    "Device",
    "Dtype",
    "Input",
    "Model",
    "Options",
    "Output",
    "Quantize",
    "Quiet",
    "Revision",
    "Running",
    "Session",
    "Sources",
    "models",
    "option",
]


@dataclass(frozen=True, slots=True)
class Options:
    """Every option that every answering command has."""

    input: Input
    output: Output
    model: Model
    answering: Answering
    running: Running
