"""Kernels of the operators in `operators.py`, for bfloat16 and float32."""

from pgcli.model.cuda.kernels.activations import geglu, geglu_quantized, linear_gelu, softcap
from pgcli.model.cuda.kernels.attention import attend
from pgcli.model.cuda.kernels.greedy import select_greedy
from pgcli.model.cuda.kernels.norms import (
    residual_layer_norm,
    residual_norm,
    residual_norm_quantized,
    rms_norm,
)
from pgcli.model.cuda.kernels.rotation import rotate

__all__ = [
    "attend",
    "geglu",
    "geglu_quantized",
    "linear_gelu",
    "residual_layer_norm",
    "residual_norm",
    "residual_norm_quantized",
    "rms_norm",
    "rotate",
    "select_greedy",
    "softcap",
]
