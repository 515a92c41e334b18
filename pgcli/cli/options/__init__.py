"""The options of the command line, in one record for each panel of the help."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.cli.options.answering import AnsweringOptions, ModelOptions
from pgcli.cli.options.boxes import MinConfidence, MinScore, Nms
from pgcli.cli.options.input import InputOptions
from pgcli.cli.options.output import OutputOptions
from pgcli.cli.options.running import RunningOptions
from pgcli.cli.options.shared import (
    MODELS,
    AllowPrivateHosts,
    AllowUrls,
    Device,
    Dtype,
    Json,
    Quantize,
    Quiet,
    Revision,
    Sources,
    images_option,
    models,
    number_option,
    option,
)

__all__ = [
    "MODELS",
    "AllowPrivateHosts",
    "AllowUrls",
    "AnsweringOptions",
    "Device",
    "Dtype",
    "InputOptions",
    "Json",
    "MinConfidence",
    "MinScore",
    "ModelOptions",
    "Nms",
    "Options",
    "OutputOptions",
    "Quantize",
    "Quiet",
    "Revision",
    "RunningOptions",
    "Sources",
    "images_option",
    "models",
    "number_option",
    "option",
]


@dataclass(frozen=True, slots=True)
class Options:
    """The options that all answering commands share, and the words of the command line."""

    input: InputOptions
    output: OutputOptions
    model: ModelOptions
    answering: AnsweringOptions
    running: RunningOptions
    arguments: tuple[str, ...] = ()
