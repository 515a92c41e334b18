"""The options of the command line, in one record for each panel of the help."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.cli.options.answering import AnsweringOptions, ModelOptions
from pgcli.cli.options.input import InputOptions
from pgcli.cli.options.output import OutputOptions
from pgcli.cli.options.running import RunningOptions
from pgcli.cli.options.shared import (
    MODELS,
    AllowPrivateHosts,
    AllowUrls,
    Debug,
    DebugState,
    Device,
    Dtype,
    Quantize,
    Quiet,
    Revision,
    Sources,
    models,
    option,
)

__all__ = [
    "MODELS",
    "AllowPrivateHosts",
    "AllowUrls",
    "AnsweringOptions",
    "Debug",
    "DebugState",
    "Device",
    "Dtype",
    "InputOptions",
    "ModelOptions",
    "Options",
    "OutputOptions",
    "Quantize",
    "Quiet",
    "Revision",
    "RunningOptions",
    "Sources",
    "models",
    "option",
]


@dataclass(frozen=True, slots=True)
class Options:
    """The options that all answering commands share."""

    input: InputOptions
    output: OutputOptions
    model: ModelOptions
    answering: AnsweringOptions
    running: RunningOptions
