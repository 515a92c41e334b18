"""The Triton kernels, in Triton's interpreter without a GPU."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch


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
