"""What compilers raise that really fail is told from errors of the device."""

import os
import subprocess
import sys
import time

import pytest

from pgcli.model.compiler_errors import is_unsupported

#: FlexAttention on the CPU, which compiles C++ where a GPU's kernel compiles its launcher.
FLEX = """
import torch
from pgcli.model import attention
from tests.support.tiny import normal

attention.can_compile = lambda query: True
query, key = normal(1, 2, 128, 16), normal(1, 2, 7, 16)
found = attention.softcapped_attention(query, key, key, None, 0.5, 2.0)
assert torch.equal(found, attention.chunked_attention(query, key, key, None, 0.5, 2.0))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables", [{"PATH": "/missing"}, {"CXX": "false"}], ids=["no compiler", "broken compiler"]
)
def test_flex_attention_without_a_compiler_is_chunked(tmp_path, variables):
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)} | variables
    run = subprocess.run(
        [sys.executable, "-c", FLEX], env=environment, capture_output=True, text=True, timeout=250
    )
    assert run.returncode == 0, run.stderr
    assert "FlexAttention does not compile" in run.stderr
    assert "apt-get install gcc python3-dev" in run.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"PATH": "/missing"},
        {"CC": "false"},
        {"CC": "/missing/gcc"},
        {"TRITON_CACHE_DIR": "/proc/missing"},
        {},  # it compiles, and is no module of Python
    ],
    ids=str,
)
def test_what_triton_raises_when_it_cannot_build_is_unsupported(monkeypatch, tmp_path, variables):
    build = pytest.importorskip("triton.runtime.build", reason="Triton is not installed")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exception) as caught:  # noqa: PT011, of any type: that is the point
        build.compile_module_from_src(f"int x; // {time.time_ns()}", "x")
    assert is_unsupported(caught.value)
