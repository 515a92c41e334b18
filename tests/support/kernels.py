"""Kernels and processors that this machine does not have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pgcli.device.select import Stopwatch
from pgcli.model import attention
from pgcli.model.cpu import linear_kernels, optimize, processor
from pgcli.model.cpu.linear_kernels import Int8LinearKernel, PackedLinearKernel
from pgcli.model.cpu.processor import has_bfloat16, has_tiles, works


def interpreted_kernels() -> Iterator[ModuleType]:
    """The kernels; skips the test without Triton. Fixes two bugs of the interpreter."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from triton import language
    from triton.runtime import interpreter

    from pgcli.model.cuda import kernels

    patch_tensor, convert = interpreter._patch_lang_tensor, interpreter._convert_float

    def patched_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        # numpy 2.4 does not convert one-element arrays, such as bounds of a loop here
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def converted(values: Any, kind: Any, to: Any, rounding: Any) -> Any:
        if to != language.float8e4nv:
            return convert(values, kind, to, rounding)
        # the interpreter loses the carry of a number that rounds up to the next power of two
        levels = torch.from_numpy(values.astype("float32")).to(torch.float8_e4m3fn)
        return levels.view(torch.uint8).numpy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", patched_tensor)
        patch.setattr(interpreter, "_convert_float", converted)
        yield kernels


#: Functions that make tensors from Python data.
FROM_PYTHON = (torch.tensor, torch.as_tensor, torch.from_numpy, torch.asarray, Tensor.new_tensor)
FACTORIES = (*FROM_PYTHON, torch.zeros, torch.ones, torch.full, torch.empty, torch.arange)
#: Methods that wait for the tensor's device and copy it to Python.
TO_PYTHON = (
    *(Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__bool__, Tensor.__int__),
    *(Tensor.__float__, Tensor.__index__, Tensor.nonzero, torch.nonzero),
)
WAITING_OPERATIONS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select")


class FakeDevice(TorchFunctionMode):
    """Fails on calls that wait for the device, and on calls that mix host and device tensors.

    The two allowed transfers are `x.to(device, non_blocking=True)` and
    `x.copy_(y, non_blocking=True)`. A copy on the host may be read once `FakeStopwatch` has waited
    for a later mark.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations = _Operations()
        self.marks = self.reached = 0
        self.copies_to_host = 0

    def __enter__(self) -> FakeDevice:
        FakeStopwatch.device = self
        self._operations.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._operations.__exit__(*problem)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") == "__get__":  # a property, such as `shape`
            return function(*args, **kwargs)
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        on_host = [one for one in tensors if is_on_host(one)]
        if tensors and len(on_host) == len(tensors):
            return self._on_host(function, args, kwargs)
        if on_host:
            return self._from_device(function, args, kwargs)
        is_of_host = kwargs.get("device", "cpu") == "cpu"
        if function in FROM_PYTHON and (tensors or not is_of_host):
            raise AssertionError(f"{function} copies Python data to the device")
        if function in FACTORIES and is_of_host:
            return _mark(self._unchecked(function, args, kwargs))
        if function in TO_PYTHON or (function is Tensor.to and "cpu" in args):
            raise AssertionError(f"{function} waits for the device")
        is_indexing = function in (Tensor.__getitem__, Tensor.__setitem__)
        if is_indexing and any(isinstance(one, list) for one in (args[1], *_parts(args[1]))):
            raise AssertionError("a list as an index is copied to the device")
        return function(*args, **kwargs)

    def _on_host(self, function: Any, args: Any, kwargs: Any) -> Any:
        """A call with host tensors only: the result stays on the host, or the call is a copy."""
        if function is Tensor.to and kwargs.get("non_blocking"):
            return function(*args, **kwargs).detach()  # a tensor that is not marked as the host's
        if function in TO_PYTHON and getattr(args[0], "complete_at", 0) > self.reached:
            raise AssertionError("a copy to the host is read before it is complete")
        return _mark(self._unchecked(function, args, kwargs))

    def _from_device(self, function: Any, args: Any, kwargs: Any) -> Any:
        """A call with tensors of both kinds: only copies are allowed."""
        if function is not Tensor.copy_ or not kwargs.get("non_blocking"):
            raise AssertionError(f"{function} takes tensors of host and device")
        if is_on_host(args[0]):
            args[0].complete_at = self.marks + 1
            self.copies_to_host += 1
        return function(*args, **kwargs)

    def _unchecked(self, function: Any, args: Any, kwargs: Any) -> Any:
        self._operations.is_checking = False
        try:
            return function(*args, **kwargs)
        finally:
            self._operations.is_checking = True


class _Operations(TorchDispatchMode):
    """Fails on operations that wait for the device, however they are called."""

    is_checking = True

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.is_checking:
            name = function.overloadpacket._qualified_op_name
            if name in WAITING_OPERATIONS:
                raise AssertionError(f"{name} waits for the device")
            if name == "aten::lift_fresh":
                raise AssertionError("a tensor is made of Python data")
            indices = args[1] if name.startswith("aten::index") and len(args) > 1 else ()
            if isinstance(indices, list | tuple) and any(
                isinstance(one, Tensor) and one.dtype == torch.bool for one in indices
            ):
                raise AssertionError("a mask as an index waits for the device")
        return function(*args, **(kwargs or {}))


class FakeStopwatch(Stopwatch):
    """Marks are numbers; `between` waits until the device has passed the second."""

    device = FakeDevice()

    def mark(self) -> Any:
        self.device.marks += 1
        return self.device.marks

    def between(self, first: Any, second: Any) -> float:
        self.device.reached = max(self.device.reached, second)
        return 1.0


def is_on_host(x: Tensor) -> bool:
    return getattr(x, "is_of_host", False)


def _mark(result: Any) -> Any:
    """The result, marked as the host's."""
    for one in tree_leaves(result):
        if isinstance(one, Tensor):
            one.is_of_host = True  # type: ignore[attr-defined]
    return result


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else ()


#: Processes with these variables compute as on a processor without AVX-512.
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
ENVIRONMENT = os.environ | AVX2

HAS_INT8 = works(Int8LinearKernel, torch.float32)
#: Each kind with what it has: VNNI, bfloat16, tiles.
KINDS = {
    "avx2": (False, False, False),
    "vnni": (True, False, False),
    "bfloat16": (True, True, False),
    "tiles": (True, True, True),
}


def simulate(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Choose kernels as on a processor of this kind; skip what this one cannot compute."""
    has = KINDS[kind]
    for wanted, real, name in zip(
        has, (HAS_INT8, has_bfloat16(), has_tiles()), ("int8", "bfloat16", "tiles"), strict=True
    ):
        if wanted and not real:
            pytest.skip(f"this processor has no {name} kernels")
    vnni, bfloat16, tiles = has
    is_packed = {torch.float32: True, torch.bfloat16: bfloat16}

    def works_there(make_kernel: type, dtype: torch.dtype) -> bool:
        if make_kernel is Int8LinearKernel:
            return vnni
        return works(make_kernel, dtype) and (
            make_kernel is not PackedLinearKernel or is_packed.get(dtype, False)
        )

    for module in (attention, linear_kernels, optimize, processor):
        for name, value in (
            ("has_avx512", lambda: bfloat16),
            ("has_bfloat16", lambda: bfloat16),
            ("has_tiles", lambda: tiles),
            ("works", works_there),
        ):
            if hasattr(module, name) and module is not processor:
                monkeypatch.setattr(module, name, value)
