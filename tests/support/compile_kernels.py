"""Compiles the Triton kernels for a GPU, without one, and prints the shared memory of each.

Run it in a separate process without Triton's interpreter, which is less strict.
"""

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pgcli.model.cuda.kernels import activations, attention, greedy, norms, rotation

INTEGERS = (
    "width inner rows columns count stride size excluded start_location stop_location near".split()
)
INTEGERS += "length qkv_stride row_stride head_stride mask_stride".split()
SPECIAL = {
    "token_ptr": "*i64",
    "part_token_ptr": "*i64",
    "position_ptr": "*i64",
    "slot_ptr": "*i64",
    "mask_ptr": "*i1",
}
SCALES = "scale_ptr query_scale_ptr key_scale_ptr".split()
FLOATS = "post_ptr frequency_ptr peak_ptr total_ptr logprob_ptr near_ptr part_ptr".split()
FLOATS += SCALES
FLOAT8 = "fp8e4nv"  # of Triton
ATTENTION = {"H": 256, "BLOCK_G": 16, "HAS_CAP": True, "DOT_FLOAT32": False}


def compiled(kernel, dtype, warps, float32=FLOATS, quantized=None, **constants):
    """The bytes of shared memory of a kernel on tensors of this dtype, some quantized."""
    types = dict.fromkeys(kernel.arg_names, "fp32") | dict.fromkeys(constants, "constexpr")
    types |= {name: f"*{dtype}" for name in types if name.endswith("_ptr")}
    types |= {name: "*fp32" for name in float32 if name in types}
    if quantized:
        names = ("quantized_ptr", "normed_ptr")
        types |= {name: f"*{quantized}" for name in names if name in types}
    types |= {name: kind for name, kind in SPECIAL.items() if name in types}
    types |= {name: "i32" for name in INTEGERS if name in types}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    # as in the model's sizes: loads are wide and pipelined, which takes the most memory
    whole = [n for n in types if n.endswith("_ptr") or n in ("width", "inner", "columns")]
    places = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in whole}
    source = ASTSource(kernel, types, constexprs=values, attrs=places)
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    return triton.compile(source, target=target, options={"num_warps": warps}).metadata.shared


def main() -> None:
    found = {}
    norm_floats = ["post_ptr", "scale_ptr", "row_scale_ptr"]
    for dtype, itemsize in (("bf16", 2), ("fp32", 4)):
        for delta, post in ((False, False), (True, False), (True, True)):
            found[f"norm {dtype} {delta} {post}"] = compiled(
                norms._norm,
                dtype,
                8,
                norm_floats,
                BLOCK=4096,
                HAS_DELTA=delta,
                HAS_POST=post,
                MAX_QUANTIZED=0.0,
            )
        found[f"layer norm {dtype}"] = compiled(
            norms._residual_layer_norm, dtype, 4, [], BLOCK=2048
        )
        found[f"geglu {dtype}"] = compiled(activations._geglu, dtype, 4, BLOCK=1024)
        found[f"softcap {dtype}"] = compiled(
            activations._softcap, dtype, 4, ["out_ptr"], BLOCK=1024
        )
        found[f"select in parts {dtype}"] = compiled(
            *(greedy._select_in_parts, dtype, 8), BLOCK=greedy.COLUMNS_AT_ONCE
        )
        found[f"select part {dtype}"] = compiled(
            *(greedy._select_part, dtype, 1), PARTS=64, BLOCK_NEAR=64
        )
        for norm in (False, True):
            found[f"rotate {dtype} {norm}"] = compiled(
                *(rotation._rotate, dtype, 4, SCALES),
                **{"N": 8, "K": 4, "H": 256, "BLOCK": 16, "BLOCK_K": 4, "HAS_NORM": norm},
            )
            for splits, heads, groups in ((1, 4, 2), (8, 1, 8)):
                more = ["out_ptr"] if splits > 1 else []
                found[f"attend {dtype} {splits} {norm}"] = compiled(
                    *(attention._attend, dtype, 4, [*FLOATS, *more]),
                    **ATTENTION | {"K": heads, "G": groups, "SPLITS": splits, "HAS_NORM": norm},
                    BLOCK_S=attention.SLOTS_AT_ONCE[itemsize],
                )
        found[f"merge {dtype}"] = compiled(
            attention._merge, dtype, 4, G=8, H=256, SPLITS=8, BLOCK=8
        )
    if int(sys.argv[1]) >= 89:  # older GPUs have no float8
        found["norm float8"] = compiled(
            *(norms._norm, "bf16", 8, norm_floats, FLOAT8),
            **{"BLOCK": 4096, "HAS_DELTA": True, "HAS_POST": True, "MAX_QUANTIZED": 448.0},
        )
        for held, columns in ((True, 16384), (False, 4096)):
            found[f"geglu float8 {held}"] = compiled(
                *(activations._geglu_quantized, "bf16", 8, ["scale_ptr"], FLOAT8),
                **{"BLOCK": columns, "IS_HELD": held},
            )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
