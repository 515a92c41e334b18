"""A tape that records operations and replays them on the CPU like a CUDA graph."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pgcli.engine.recorded_step import Recording, Step


class Tape(TorchDispatchMode):
    """Records operations with their tensors and Python numbers; `replay` runs them again.

    As with a CUDA graph, every operation reads and writes the memory of the recording, Python
    numbers and branches are fixed, and recording itself computes nothing: `undo` restores the
    memory that existed before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._own: set[int] = set()  # storages of tensors created on the tape
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __len__(self) -> int:
        return len(self._operations)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        written = written_tensors(function, args, kwargs)
        for storage in (one.untyped_storage() for one in written):
            if storage.data_ptr() not in {*self._own, *self._before}:
                self._before[storage.data_ptr()] = (storage, storage.clone())
        result = function(*args, **kwargs)
        given = {one.untyped_storage().data_ptr() for one in strided_tensors((args, kwargs))}
        made = [] if written else strided_tensors(result)
        places = {one.untyped_storage().data_ptr() for one in made}
        if made and places <= given:
            return result  # views show the same memory at every replay
        self._own |= places
        self._operations.append((function, args, kwargs, made))
        return result

    def undo(self) -> None:
        """Restore the memory that existed before."""
        for storage, before in self._before.values():
            storage.copy_(before)

    def replay(self) -> None:
        for function, args, kwargs, made in self._operations:
            results = strided_tensors(function(*args, **kwargs))
            for one, again in zip(made, results if made else (), strict=True):
                one.copy_(again)


def record_on_tape(step: Step) -> Recording:
    """Replaces `CudaGraphs`."""
    tape = Tape()
    with tape:
        tokens = step()
    tape.undo()
    return Recording(tokens, tape.replay)


def written_tensors(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that the operation writes."""
    found = []
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += strided_tensors(value)
    return found


def strided_tensors(result: Any) -> list[Tensor]:
    return [
        one
        for one in tree_leaves(result)
        if isinstance(one, Tensor) and one.layout == torch.strided  # packed weights are constants
    ]
