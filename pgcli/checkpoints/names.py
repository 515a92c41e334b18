"""Translates tensor names between checkpoints and the models: a table for each layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Pairs of a name in a checkpoint and in the model.
Pairs = tuple[tuple[str, str], ...]
#: Parts of the names of fused parameters, and of the stored tensors that fill their rows.
QKV = ".qkv_proj."
FUSED = {QKV: (".q_proj.", ".k_proj.", ".v_proj."), ".gate_up_proj.": (".gate_proj.", ".up_proj.")}
#: Name parts that wrappers add: DataParallel and PEFT in front, torch.compile, FSDP and activation
#: checkpointing before the name of any module.
_WRAPPERS = re.compile(
    r"^((module|base_model\.model)\.)+|(?<![^.])_(orig_mod|fsdp_wrapped_module|"
    r"checkpoint_wrapped_module)\."
)


def without_wrappers(name: str) -> str:
    """A tensor's name without the parts that DataParallel, PEFT, torch.compile and FSDP add."""
    while (plain := _WRAPPERS.sub("", name)) != name:
        name = plain
    return name


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The names of a model's tensors in one layout of checkpoints.

    `prefixes` are pairs of prefixes in the checkpoint and in the model; the first match counts, in
    both directions. Later pairs for the same module read names of other versions. `parts` are pairs
    of substrings to replace after the prefix. Tensors whose name matches `unused` are skipped.
    Parameters in `dimensions` are stored with leading ones up to that many dimensions.
    """

    prefixes: Pairs
    parts: Pairs = ()
    unused: str = r"(?!)"
    dimensions: Mapping[str, int] = field(default_factory=dict)

    def canonical(self, name: str) -> str:
        """The model's name for a checkpoint's tensor; the same name if it is not in the table."""
        return self._renamed(name, 0, 1) or name

    def hub_name(self, name: str) -> str:
        """The checkpoint's name for a tensor of the model. Raises ValueError for another tensor."""
        if renamed := self._renamed(name, 1, 0):
            return renamed
        raise ValueError(f"{name} is not a tensor of the model")

    def _renamed(self, name: str, old: int, new: int) -> str | None:
        """The name with the prefix and the parts of the other side of the pairs."""
        for prefix in self.prefixes:
            if name.startswith(prefix[old]):
                suffix = name.removeprefix(prefix[old])
                for part in self.parts:
                    suffix = suffix.replace(part[old], part[new])
                return prefix[new] + suffix
        return None

    def is_unused(self, name: str) -> bool:
        """Whether the model has no parameter for the checkpoint's tensor."""
        return re.search(self.unused, name) is not None
