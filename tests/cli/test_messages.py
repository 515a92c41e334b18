"""Error messages: each names the cause, and its hint the next command."""

import ast
import re
import shutil
import sys

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

from pgcli.checkpoints.find import BUILTIN
from pgcli.device import machine as driver
from pgcli.engine import loader, memory
from pgcli.errors import PgcliError
from tests.support.published import PUBLISHED
from tests.support.runs import EXAMPLES, ROOT
from tests.support.servers import Hub

MODEL = "somebody/some-model"
FILES = {file.name: file.read_bytes() for file in BUILTIN.iterdir() if file.is_file()}
WHEEL = f"{sys.executable} -m pip install --force-reinstall torch --index-url "
WHEEL += "https://download.pytorch.org/whl/cu126"


@pytest.fixture
def caption(cli):
    """Runs `caption` on an image, by default with the built-in model; its code and messages."""
    shutil.copy(EXAMPLES / "one.png", "one.png")

    def caption(*words, model="demo"):
        code, _, err = cli("caption", "one.png", "--model", model, *words)
        return code, err

    return caption


def test_licence_is_to_be_accepted_and_a_token_to_be_set(caption, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with Hub() as hub:
        huggingface_hub.close_session()
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in {
            "ENDPOINT": hub.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": template,
            "HF_HUB_OFFLINE": False,
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
        }.items():
            monkeypatch.setattr(constants, name, value)
        hub.add(MODEL, FILES)
        hub.gated, hub.accepted_tokens = True, ("hf_member",)
        code, err = caption(model=MODEL)
        assert code == 10
        assert err.endswith(
            f"pgcli: {MODEL} needs its licence accepted, and no token is set on this machine\n"
            f"hint: open {hub.url}/{MODEL} and accept the licence, then `hf auth login`; or name a "
            "local folder: --model DIR\n",
        )


@pytest.fixture
def gpu(monkeypatch):
    """Has PyTorch, built for a version of CUDA or for none, find no use for a GPU."""

    def gpu(driver_version, cuda):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(driver, "nvidia_driver", lambda: driver_version)

    return gpu


@pytest.mark.parametrize(
    ("cuda", "cause", "remedy"),
    [
        (None, "an NVIDIA driver (550.54.14), and a PyTorch built for the CPU only", ""),
        (
            "13.0",
            "driver 550.54.14 is too old for CUDA 13.0, which needs 580",
            "; or install a newer driver",
        ),
    ],
)
def test_gpu_that_cannot_be_used_has_a_cause_and_a_remedy(caption, gpu, cuda, cause, remedy):
    gpu("550.54.14", cuda)
    code, err = caption("--device", "cuda")
    assert code == 17
    assert err.endswith(
        f"pgcli: no CUDA device can be used: {cause}\nhint: {WHEEL}{remedy}; or --device cpu\n"
    )


def test_too_little_memory_names_what_takes_less(caption, monkeypatch):
    def weights_of_3b(_, dtype, **options):
        return memory.weight_bytes(PUBLISHED, dtype, **options)

    monkeypatch.setattr(loader, "weight_bytes", weights_of_3b)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 6 * 10**9)
    code, err = caption("--device", "cpu", "--dtype", "float32")
    assert code == 17
    assert err.endswith(
        "pgcli: the weights take 11.7 GB in float32, and cpu has 6.0 GB free\n"
        "hint: --dtype bfloat16 takes half; --quantize takes less; name a smaller model: "
        "`pgcli info MODEL` shows the memory it needs\n"
    )


def test_unused_gpu_is_reported_before_the_run(caption, gpu, monkeypatch):
    gpu("550.54.14", None)
    code, err = caption()
    assert code == 0
    assert "pgcli: the CPU is used, not the GPU: an NVIDIA driver (550.54.14)" in err
    assert "hint: " in err
    assert "the CPU is used" not in caption("--device", "cpu")[1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gpu("580.65.06", "13.0")
    assert "the CPU is used" not in caption()[1]


def problems():
    """Every call in the program that creates a known error: file, line and arguments."""
    kinds = {kind.__name__ for kind in kinds_of(PgcliError)}
    for file in sorted((ROOT / "pgcli").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in kinds:
                yield file.name, node.lineno, node


def kinds_of(kind):
    return [kind, *(below for child in kind.__subclasses__() for below in kinds_of(child))]


def test_every_known_error_has_a_hint():
    """Only the errors of foreign files have a default hint."""
    own = {"InvalidCheckpoint", "ManifestError"}
    found = list(problems())
    assert len(found) > 150
    without = [
        (file, line)
        for file, line, call in found
        if call.func.id not in own and "hint" not in {word.arg for word in call.keywords}
    ]
    assert without == []


def test_messages_are_lower_case_and_end_without_a_dot():
    for file, line, call in problems():
        for text in [*call.args[:1], *(w.value for w in call.keywords if w.arg == "hint")]:
            parts = getattr(text, "values", [text])
            first, last = (getattr(part, "value", None) for part in (parts[0], parts[-1]))
            if isinstance(last, str):
                assert not last.endswith((".", "!")), (file, line)
            if isinstance(first, str) and (word := re.match(r"[A-Z][a-z]+ ", first)):
                assert word[0] in ("PaliGemma ",), (file, line)
