"""The options of the panel Answering."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pgcli.cli.option import option
from pgcli.cli.options import values
from pgcli.cli.options.shared import number_option

_answering = partial(option, "Answering")
_number = partial(number_option, "Answering")


@dataclass(frozen=True, slots=True)
class AnsweringOptions:
    """How answers are generated."""

    max_new_tokens: Annotated[
        int | None,
        _number(
            "--max-new-tokens",
            least=1,
            default="caption 128, ask 64, detect 256, segment 512, ocr 512",
            help="Longest answer, in tokens.",
        ),
    ] = None
    temperature: Annotated[
        float,
        _number(
            "--temperature",
            least=0.0,
            help="0 takes the most likely token each time; above 0, tokens are sampled.",
        ),
    ] = 0.0
    top_p: Annotated[
        float,
        _number(
            "--top-p",
            least=0.0,
            most=1.0,
            above=True,
            help="Sample among the most likely tokens whose probabilities sum to this.",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        _number("--top-k", least=0, help="Sample among the N most likely tokens; 0: among all."),
    ] = 0
    seed: Annotated[
        int,
        _number("--seed", least=0, help="Equal seeds sample equal answers at every batch size."),
    ] = 0
    alternatives: Annotated[
        int,
        _number(
            "--alternatives",
            least=0,
            most=1000,
            help="Also sample N answers, at --temperature or else at 1; the answer itself stays "
            "the most likely one.",
        ),
    ] = 0
    token_logprobs: Annotated[
        bool,
        _answering(
            "--token-logprobs", help="Add a column with each token and its log-probability."
        ),
    ] = False
    region: Annotated[
        values.Region | None,
        _answering(
            "--region",
            metavar="BOX",
            parser=values.region,
            help="Ask about xmin,ymin,xmax,ymax, in pixels of each upright image.",
        ),
    ] = None
