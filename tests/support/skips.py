"""The skips that CI allows: any other reason fails the run."""

import re
from collections import Counter

#: Features that a machine may lack: each pattern is searched in the reason of a skip.
ALLOWED = tuple(
    re.compile(pattern)
    for pattern in (
        r"this machine has no CUDA device|needs a CUDA device",
        r"this processor",  # lacks bfloat16, AMX or int8 kernels
        r"this PyTorch",
        r"root may write everywhere",
        r"who may mount",
        r"hundreds of megabytes",
        r"moto\[server\] is not installed",
        r"boto3 is not installed",
        r"Triton is not installed",
        r"groff is not installed",
        r"axe-core is not installed",
        r"axe-core is missing",
        # 79 MB for a few tests: the division of chunks is tested without it
        r"ray is (not )?installed",
    )
)


def unexpected(reasons: Counter[str]) -> list[str]:
    """The reasons that are not allowed, each with how often it occurred."""
    return [
        f"{reason} ({count} x)"
        for reason, count in sorted(reasons.items())
        if not any(pattern.search(reason) for pattern in ALLOWED)
    ]
