"""Triton kernels of the operators in `operators.py`, for bfloat16 and float32."""

from pgcli.model.cuda.kernels.activations import geglu, geglu_levels, softcap
from pgcli.model.cuda.kernels.attention import attend
from pgcli.model.cuda.kernels.choice import choose
from pgcli.model.cuda.kernels.drawing import draw
from pgcli.model.cuda.kernels.levels import int8_product
from pgcli.model.cuda.kernels.norms import residual_norm, residual_norm_levels, rms_norm
from pgcli.model.cuda.kernels.rotation import rotate

__all__ = [
    "attend",
    "choose",
    "draw",
    "geglu",
    "geglu_levels",
    "int8_product",
    "residual_norm",
    "residual_norm_levels",
    "rms_norm",
    "rotate",
    "softcap",
]
