"""The options of the command line, in one record for each panel of the help."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.cli.option import option
from pgcli.cli.options.answering import AnsweringOptions
from pgcli.cli.options.boxes import MinConfidence, MinScore, Nms
from pgcli.cli.options.input import InputOptions
from pgcli.cli.options.model import ModelOptions
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
    ReplaceFile,
    ResultFile,
    Revision,
    Sources,
    images_option,
    models,
    number_option,
)

__all__ = [
    "MODELS",
    "AllowPrivateHosts",
    "AllowUrls",
    "AnsweringOptions",
    "Device",
    "Dtype",
    "InputOptions",
    "JobOptions",
    "Json",
    "MinConfidence",
    "MinScore",
    "ModelOptions",
    "Nms",
    "Options",
    "OutputOptions",
    "Quantize",
    "Quiet",
    "ReplaceFile",
    "ResultFile",
    "Revision",
    "RunningOptions",
    "Sources",
    "images_option",
    "models",
    "number_option",
    "option",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of every command that makes rows, and the words of the command line."""

    input: InputOptions
    output: OutputOptions
    model: ModelOptions
    running: RunningOptions
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(JobOptions):
    """The options of the commands that answer prompts."""

    answering: AnsweringOptions
