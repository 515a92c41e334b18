"""The options of `train` for PaliGemma: which weights are trained, and by which loss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NewType

import typer

from pgcli.cli.option import option
from pgcli.cli.options.shared import number_option

_method = partial(option, "PaliGemma", own=True)
_number = partial(number_option, "PaliGemma", own=True)

PARTS = ("vision", "projector", "decoder")
# named, as Typer treats a plain tuple as an option with several values
Parts = NewType("Parts", tuple[str, ...])


def parse_parts(text: str | tuple[str, ...]) -> Parts:
    """Parts of the model, separated by commas."""
    if isinstance(text, tuple):
        return Parts(text)  # the default
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in PARTS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(PARTS)}")
    return Parts(names)


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """How PaliGemma is trained."""

    method: Annotated[
        Literal["lora", "full"],
        _method(
            "--method",
            help="lora: low-rank adapters beside frozen weights; full: all weights, in float32.",
        ),
    ] = "lora"
    rank: Annotated[
        int | None, _number("--rank", least=1, most=4096, default="8", help="Of the adapters.")
    ] = None
    alpha: Annotated[
        float | None,
        _number(
            "--alpha",
            least=0.0,
            above=True,
            default="32",
            help="The adapters are scaled by alpha / rank.",
        ),
    ] = None
    rslora: Annotated[
        bool, _method("--rslora", help="Scale them by alpha / sqrt(rank) instead.")
    ] = False
    targets: Annotated[
        str | None,
        _method(
            "--targets",
            metavar="LAYERS",
            default="attention",
            help="Layers with adapters. attention: of the decoder; all: its MLP too; "
            "attention,vision and all,vision: the vision tower's, too.",
        ),
    ] = None
    dropout: Annotated[
        float,
        _number(
            "--dropout",
            least=0.0,
            most=0.9,
            help="Of the adapters' inputs; with --method full, of the decoder's layers.",
        ),
    ] = 0.0
    quantize: Annotated[
        Literal["none", "int8"],
        _method(
            "--quantize",
            help="int8: the decoder's frozen layers take half the memory of bfloat16.",
        ),
    ] = "none"
    freeze: Annotated[
        Parts,
        _method(
            "--freeze",
            metavar="PART,...",
            parser=parse_parts,
            default="none",
            help="With --method full, parts that stay as they are: vision, projector, decoder.",
        ),
    ] = Parts(())
    loss_mean: Annotated[
        Literal["example", "token"],
        _method(
            "--loss-mean",
            help="The loss is the mean over rows, of the mean of each one's tokens; or over all "
            "tokens of an update, as in transformers.",
        ),
    ] = "example"
    keep_softcap: Annotated[
        bool,
        _method(
            "--keep-softcap",
            help="Keep PaliGemma 2's cap on the logits in training; its authors turn it off.",
        ),
    ] = False
    merge: Annotated[
        bool,
        _method(
            "--merge", help="Write also a whole checkpoint with the adapter merged: DIR/merged."
        ),
    ] = False
    gradient_checkpointing: Annotated[
        Literal["auto", "on", "off"],
        _method(
            "--gradient-checkpointing",
            help="Compute activations twice to hold fewer; auto: where memory needs it.",
        ),
    ] = "auto"
