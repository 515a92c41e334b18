"""FlexAttention computes softcapped attention where it can, with a fallback after an error."""

import warnings
from subprocess import CalledProcessError

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit, Unsupported
from torch._inductor.exc import InductorError
from torch._inductor.runtime.triton_heuristics import NoTritonConfigsError

from pgcli.model import attention
from pgcli.model.attention import (
    FLEX_UNSUPPORTED,
    chunked_attention,
    compiled_attention,
    softcapped_attention,
)
from tests.support.tiny import normal


def raised_from(error, cause):
    error.__cause__ = cause
    return error


UNSUPPORTED = [
    NoTritonConfigsError("No valid triton configs. out of resource: shared memory"),
    Unsupported("a graph break"),
    FailOnRecompileLimitHit("recompile_limit reached"),
    NotImplementedError("no such kernel"),
    ImportError("No module named 'triton'"),
    # Triton's, without a compiler, Python.h or libcuda, and for a failed pass
    RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
    CalledProcessError(1, ["/usr/bin/gcc", "main.c"]),
    AssertionError("libcuda.so cannot found!\n"),
    RuntimeError("PassManager::run failed"),
    InductorError(RuntimeError("Failed to find C compiler."), None),
    OSError(30, "Read-only file system", "/.triton"),
    KeyError("getpwuid(): uid not found: 10001"),
    # a kernel that was built, and that the driver does not load
    RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
    RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    type("OutOfResources", (Exception,), {"__module__": "triton.runtime.errors"})("shared memory"),
    RuntimeError("flex_attention is not supported on this device"),
    raised_from(RuntimeError("backend failed"), InductorError(ValueError("lowering"), None)),
]
OOM = torch.OutOfMemoryError("CUDA out of memory")
#: Errors of a kernel that was launched: the device reports them.
LAUNCHES = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA driver error: unspecified launch failure"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasLtMatmul`"),
    InductorError(RuntimeError("Triton Error [CUDA]: misaligned address"), None),
    MemoryError(),
]
#: Errors of the kernel, and the errors that callers see.
OTHER = [
    *((error, error) for error in (OOM, *LAUNCHES)),
    (raised_from(InductorError(ValueError("autotuning"), None), OOM), OOM),
]


@pytest.fixture
def heads(monkeypatch):
    """A query, and one tensor as key and value, for which a GPU would compile a kernel."""
    monkeypatch.setattr(attention, "can_compile", lambda query: True)
    monkeypatch.setattr(attention, "FLEX_UNSUPPORTED", set())
    return normal(1, 2, 5, 16), normal(1, 2, 7, 16)


def failing(monkeypatch, error):
    """Make the compiled kernel raise the error; the list counts the calls."""
    calls = []

    def fail(*arguments):
        calls.append(arguments)
        raise error

    monkeypatch.setattr(attention, "compiled_attention", fail)
    return calls


@pytest.mark.parametrize("error", UNSUPPORTED, ids=lambda error: type(error).__name__)
def test_unsupported_kernel_warns_once_and_uses_chunks(heads, monkeypatch, error):
    query, key = heads
    calls = failing(monkeypatch, error)
    expected = chunked_attention(query, key, key, None, 0.5, 2.0)
    message = "heads of size 16 on cpu; .* in chunks.*apt-get install gcc python3-dev"
    with pytest.warns(UserWarning, match=message):
        found = softcapped_attention(query, key, key, None, 0.5, 2.0)
    assert torch.equal(found, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(softcapped_attention(query, key, key, None, 0.5, 2.0), expected)
    assert len(calls) == 1, "the kernel is not tried again"
    assert {(query.device, query.dtype, 16)} == attention.FLEX_UNSUPPORTED


@pytest.mark.parametrize(("error", "raised"), OTHER)
def test_other_errors_are_raised_and_disable_nothing(heads, monkeypatch, error, raised):
    """This includes OOM wrapped by the compiler, which happens while it tries configurations."""
    query, key = heads
    failing(monkeypatch, error)
    with pytest.raises(type(raised)) as caught:
        softcapped_attention(query, key, key, None, 0.5, 2.0)
    assert caught.value is raised
    assert set() == attention.FLEX_UNSUPPORTED


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("masked", [None, "keys", "pairs"])
def test_flex_attention_is_used_on_a_gpu(monkeypatch, dtype, masked):
    """Heads of PaliGemma 2 3b: 4 key/value heads of 256, two query heads each."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return compiled_attention(*arguments)

    monkeypatch.setattr(attention, "compiled_attention", counted)
    query = normal(2, 4, 512, 256, dtype=dtype).cuda()
    key, value = (normal(2, 4, 256, 256, seed=seed, dtype=dtype).cuda() for seed in (2, 3))
    mask = None
    if masked:
        mask = torch.rand(2, 1, 512 if masked == "pairs" else 1, 256, device="cuda") > 0.3
        mask[..., 0] = True
    with torch.inference_mode():
        found = softcapped_attention(query, key, value, mask, 256**-0.5, 50.0)
        expected = chunked_attention(query, key, value, mask, 256**-0.5, 50.0)
    assert len(calls) == 1
    assert not FLEX_UNSUPPORTED, "the kernel compiled"
    tolerance = 2e-2 if dtype == torch.bfloat16 else 5e-3
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
