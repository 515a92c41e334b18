"""The settings of training PaliGemma: which weights, and which loss."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from pgcli.errors import UsageError
from pgcli.training.lora import LoraSettings

Method = Literal["lora", "full"]
Checkpointing = Literal["auto", "on", "off"]
Quantization = Literal["none", "int8"]
PARTS = ("vision", "projector", "decoder")  # of the model, that can be frozen
#: The options that only one of the methods has.
OF_LORA = ("rank", "alpha", "targets", "quantize", "merge")
OF_FULL = ("freeze",)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """What is trained of PaliGemma and how; None stands for a default.

    `dropout` is that of an adapter's inputs, or with the method `full` that of the decoder's
    residual branches. `freeze` names parts of the model that stay as they are; with `quantize`, the
    decoder's layers below adapters are in int8.
    """

    method: Method = "lora"
    rank: int | None = None
    alpha: float | None = None
    targets: str | None = None
    dropout: float = 0.0
    quantize: Quantization = "none"
    freeze: tuple[str, ...] = ()
    merge: bool = False
    gradient_checkpointing: Checkpointing = "auto"

    def check(self) -> None:
        """Raise UsageError for settings that do not go together."""
        for one in fields(self):
            others = OF_FULL if self.method == "lora" else OF_LORA
            if one.name in others and getattr(self, one.name) != one.default:
                other = "full" if self.method == "lora" else "lora"
                raise UsageError(f"--{one.name} goes with --method {other}", hint="leave it out")
        if {*self.freeze} == {*PARTS}:
            raise UsageError(
                "--freeze names all parts of the model, and none is left to train",
                hint="leave one out",
            )
        _ = self.lora  # checks its values

    @property
    def lora(self) -> LoraSettings:
        """The adapters. Raises UsageError."""
        default = LoraSettings()
        return LoraSettings(
            rank=self.rank or default.rank,
            alpha=self.alpha,
            dropout=self.dropout,
            targets=self.targets or default.targets,
        )

    @property
    def trains_vision(self) -> bool:
        """Whether the outputs of the vision tower change in training."""
        return self.lora.has_vision if self.method == "lora" else "vision" not in self.freeze
