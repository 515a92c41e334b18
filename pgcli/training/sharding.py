"""A model whose weights, gradients and moments are divided over the processes by FSDP2.

Each layer is gathered before it computes, forward and backward, and given up after it. Weights are
gathered in float32, and autocast makes the products: an update is that of one process.
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
    """The root of a divided model: all that is computed with the weights is its forward pass."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


def shard(model: nn.Module, device: torch.device) -> None:
    """Divide the weights of the model, which are equal in all processes, over them.

    They are moved to the device layer by layer, so that it never holds all of a model on the CPU.
    The layers of each `nn.ModuleList` are gathered one at a time, and what is left all at once. In
    the backward pass a layer has the one before it gathered ahead. That is set here: FSDP2 would go
    by the forward passes since the last backward pass, and the first process has evaluated in more.
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
    """Whether the weights of the model are divided over processes."""
    return hasattr(model, ROOT)


def compute(model: nn.Module, work: Callable[[], Result]) -> Result:
    """The result of `work`, which computes with the model's weights.

    If these are divided, those outside of layers are gathered for it, and for its backward pass.
    """
    root = getattr(model, ROOT, None)
    result: Result = work() if root is None else root(work)
    return result


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """A block in which each process has all weights, and computes without the others."""
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
    """A block in which the first process has all weights of a divided model, on its CPU.

    They are gathered one at a time: a device holds its part of the model and a single weight.
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
    """Whether this process has a part of the tensor only: whether it is a DTensor.

    The class is not imported here, which takes seconds.
    """
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor with the parts of all processes."""
    parts: Any = tensor
    full: Tensor = parts.full_tensor() if is_sharded(tensor) else tensor
    return full


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor on the device of `like`, divided as `like` is."""
    tensor = tensor.to(like.device)
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    parts: Any = like
    return distribute_tensor(tensor, parts.device_mesh, parts.placements, src_data_rank=None)
