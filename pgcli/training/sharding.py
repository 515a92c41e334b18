"""Shards the weights, gradients and optimizer moments of a model over the processes, with FSDP2.

FSDP2 gathers each layer before its forward and backward pass, and frees it afterwards. Weights are
gathered in float32 and autocast converts them, so an update equals the update of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Result = TypeVar("Result")

ROOT = "fsdp_root"  # the attribute of a divided model


class Computation(nn.Module):
    """The root of a sharded model: its forward pass is any computation with the weights."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


def shard(model: nn.Module, device: torch.device) -> None:
    """Shard the weights of the model, which are equal in all processes.

    Weights move to the device layer by layer, so the device never holds the whole model. FSDP2
    gathers the layers of each `nn.ModuleList` one at a time, and all other weights together. The
    backward pass prefetches the previous layer. The order is set here because FSDP2 would derive it
    from the forward passes since the last backward pass, and only the first process evaluates.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in [*model.modules()]:
        if isinstance(module, nn.ModuleList):
            layers: list[Any] = [fully_shard(layer, mesh=mesh) for layer in module]
            for layer, ahead in zip(layers, [layers[0], *layers], strict=False):
                layer.set_modules_to_backward_prefetch([ahead])
    root: Any = fully_shard(Computation(model), mesh=mesh)
    root.set_modules_to_backward_prefetch([root])
    object.__setattr__(model, ROOT, root)  # not as a module of the model, which it contains


def is_divided(model: nn.Module) -> bool:
    """Whether the weights of the model are sharded over processes."""
    return hasattr(model, ROOT)


def compute(model: nn.Module, work: Callable[[], Result]) -> Result:
    """The result of `work`, which computes with the model's weights.

    FSDP2 gathers sharded weights outside of layers for `work` and its backward pass.
    """
    root = getattr(model, ROOT, None)
    result: Result = work() if root is None else root(work)
    return result


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """A block in which each process has all weights and computes independently."""
    root = getattr(model, ROOT, None)
    modules: Iterable[Any] = () if root is None else root.modules()
    sharded = [module for module in modules if hasattr(module, "unshard")]
    for module in sharded:
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for module in sharded:
            module.set_reshard_after_forward(module is not root, recurse=False)
            module.reshard()


@contextmanager
def in_host_memory(model: nn.Module, *, is_first: bool) -> Iterator[None]:
    """A block in which the first process has all weights of a sharded model on its CPU.

    Weights are gathered one at a time: the device holds its shard and a single full weight.
    """
    owners = [
        (module._parameters, name, parameter)
        for module in (model.modules() if is_divided(model) else ())
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]
    try:
        for parameters, name, parameter in owners:
            weight = full_tensor(parameter.detach())
            if is_first:
                parameters[name] = nn.Parameter(weight.cpu(), requires_grad=False)
        yield
    finally:
        for parameters, name, parameter in owners:
            parameters[name] = parameter


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is sharded: a DTensor, whose class takes seconds to import."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor with the shards of all processes."""
    parts: Any = tensor
    full: Tensor = parts.full_tensor() if is_sharded(tensor) else tensor
    return full


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor on the device of `like`, sharded like it."""
    tensor = tensor.to(like.device)
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    parts: Any = like
    return distribute_tensor(tensor, parts.device_mesh, parts.placements, src_data_rank=None)
