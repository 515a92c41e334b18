"""Compares the weights' forms on a CPU: processor time of one 3b decoder layer's products.

    python benchmarks/cpu_layer.py
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 \\
        OMP_NUM_THREADS=1 python benchmarks/cpu_layer.py      # as without AVX-512

The forms run alternately in one process. Prints medians in milliseconds, and how many times as fast
as float32 each form is, with the lowest and highest round.
"""

from __future__ import annotations

import sys
from statistics import median
from time import process_time

from benchmarks.measure import hub_config, options

ROWS = (1, 4, 8, 16, 272, 1088)  # decode steps, and prompts of one image and of four
FORMS = (("float32", "none"), ("bfloat16", "none"), ("float32", "int8"), ("bfloat16", "int8"))


def main() -> None:
    import torch

    from pgcli.checkpoints.config import parse_config
    from pgcli.model.cpu.optimize import choose_kernel, pack_decoder_layer
    from pgcli.model.gemma import GemmaDecoderLayer

    args = options(__doc__, rounds=5, generation=(1, 2))
    config = parse_config(hub_config(args.generation, 224)).decoder
    torch.manual_seed(0)
    layers = {}
    for name, quantize in FORMS:
        dtype = getattr(torch, name)
        layer = GemmaDecoderLayer(config).to(dtype).requires_grad_(requires_grad=False)
        kernel = choose_kernel(dtype, quantize)
        pack_decoder_layer(layer, kernel, is_last=False)
        layers[name, quantize] = layer, dtype
        sys.stdout.write(f"{name}, {quantize}: {getattr(kernel, '__name__', kernel)}\n")
    for rows in ROWS:
        shape = (rows, 1) if rows <= 16 else (1, rows)
        times: dict[tuple[str, str], list[float]] = {form: [] for form in FORMS}
        with torch.inference_mode():
            for _ in range(args.rounds + 1):
                for form, (layer, dtype) in layers.items():
                    x = torch.randn(*shape, config.width).to(dtype)
                    began = process_time()
                    layer.self_attn.o_proj(
                        layer.self_attn.qkv_proj(x)[..., : config.num_heads * config.head_dim]
                    )
                    layer.mlp(x)
                    times[form].append((process_time() - began) * 1000)
        exact = times[FORMS[0]][1:]  # the first round is a warm-up
        for form in FORMS:
            ratios = sorted(a / b for a, b in zip(exact, times[form][1:], strict=True))
            sys.stdout.write(
                f"{rows:5} rows, {form[0]:8} {form[1]:5} {median(times[form][1:]):8.1f} ms  "
                f"{median(ratios):.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f})\n"
            )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
