"""Error messages: a table of situations, each of which is reproduced.

Each message names the cause; its hint names the next command.
"""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

from pgcli.checkpoints.find import BUILTIN
from pgcli.device import nvidia_driver as driver
from pgcli.engine import loader, memory
from pgcli.errors import PgcliError
from pgcli.run import model as running
from pgcli.run.progress import plan
from tests.support import pretend
from tests.support.hub_server import Hub
from tests.support.runs import EXAMPLES, ROOT

MODEL = "somebody/some-model"
FILES = {file.name: file.read_bytes() for file in BUILTIN.iterdir() if file.is_file()}


class Stage:
    """A machine with an image, an empty cache, no token, and a Hub of its own."""

    def __init__(self, monkeypatch, cli, hub):
        self.patch, self.cli, self.hub = monkeypatch, cli, hub

    def run(self, *words):
        """The exit code and standard error of a command."""
        code, _, err = self.cli(*words)
        return code, err

    def gated(self):
        """Request a model with a licence, without a token."""
        self.hub.add(MODEL, FILES)
        self.hub.gated, self.hub.accepted_tokens = True, ("hf_member",)
        return self.run("caption", "one.png", "--model", MODEL)

    def gpu_idle(self, version, built, *words):
        """Run on a machine with a GPU that PyTorch cannot use."""
        self.patch.setattr(torch.cuda, "is_available", lambda: False)
        self.patch.setattr(torch.version, "cuda", built)
        self.patch.setattr(driver, "nvidia_driver", lambda: version)
        return self.run("caption", "one.png", "--model", "demo", *words)

    def little_memory(self, *words):
        self.patch.setattr(loader, "parameters", lambda config: 2_923_466_480)
        self.patch.setattr(memory, "free_bytes", lambda device: 6 * 10**9)
        return self.run("caption", "one.png", "--model", "demo", "--device", "cpu", *words)


@dataclass
class Situation:
    """A failing command, with its exit code, message and hint.

    In the texts `{hub}` is the Hub's address.
    """

    name: str
    reproduce: Callable[[Stage], tuple[int, str]]
    code: int
    message: str
    hint: str


SITUATIONS = [
    Situation(
        "the licence is not accepted, and there is no token",
        lambda stage: stage.gated(),
        10,
        f"{MODEL} needs its licence accepted, and no token is set on this machine",
        f"open {{hub}}/{MODEL} and accept the licence, then `hf auth login`; or name a local "
        "folder: --model DIR",
    ),
    Situation(
        "a GPU, and a PyTorch for the CPU",
        lambda stage: stage.gpu_idle("550.54.14", None, "--device", "cuda"),
        17,
        "no CUDA device can be used: an NVIDIA driver (550.54.14), and a PyTorch built for the CPU "
        "only",
        f"{sys.executable} -m pip install --force-reinstall torch --index-url "
        "https://download.pytorch.org/whl/cu126; or --device cpu",
    ),
    Situation(
        "a GPU whose driver is too old for PyTorch's CUDA",
        lambda stage: stage.gpu_idle("550.54.14", "13.0", "--device", "cuda"),
        17,
        "no CUDA device can be used: driver 550.54.14 is too old for CUDA 13.0, which needs 580",
        f"{sys.executable} -m pip install --force-reinstall torch --index-url "
        "https://download.pytorch.org/whl/cu126; or install a newer driver; or --device cpu",
    ),
    Situation(
        "too little memory",
        lambda stage: stage.little_memory("--dtype", "float32"),
        17,
        "the weights take 11.7 GB in float32, and cpu has 6.0 GB free",
        "--dtype bfloat16 takes 5.8 GB; name a smaller model: `pgcli info MODEL` shows the memory "
        "it needs",
    ),
]


@pytest.fixture
def stage(tmp_path, monkeypatch, cli):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    shutil.copy(EXAMPLES / "one.png", "one.png")
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
        yield Stage(monkeypatch, cli, hub)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_each_message_names_its_cause_and_the_next_command(stage, situation):
    code, output = situation.reproduce(stage)
    assert code == situation.code, output
    assert "Traceback" not in output
    expected = f"pgcli: {situation.message}\nhint: {situation.hint}"
    assert "\n".join(output.splitlines()[-2:]) == expected.replace("{hub}", stage.hub.url)


def test_unused_gpu_is_reported_before_the_run(stage):
    code, output = stage.gpu_idle("550.54.14", None)
    assert code == 0
    assert "pgcli: the CPU is used, not the GPU: an NVIDIA driver (550.54.14)" in output
    assert "hint: " in output
    assert "the CPU is used" not in stage.gpu_idle("550.54.14", None, "--device", "cpu")[1]
    stage.patch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "the CPU is used" not in stage.gpu_idle("580.65.06", "13.0")[1]


@pytest.mark.nightly
def test_command_in_the_pickle_hint_converts_it(stage):
    from safetensors.torch import load_file

    Path("it's mine").mkdir()
    for name in ("config.json", "tokenizer.json"):
        Path("it's mine", name).write_bytes(FILES[name])
    weights = load_file(BUILTIN / "model.safetensors")
    torch.save(weights, "it's mine/pytorch_model.bin")
    code, output = stage.run("caption", "one.png", "--model", "it's mine", "-q")
    assert code == 16
    command = output.partition("convert it: ")[2].strip()
    python = command.replace("python ", f"{shlex.quote(sys.executable)} ", 1)
    subprocess.run(["bash", "-c", python], check=True, capture_output=True, timeout=100)
    assert load_file("it's mine/model.safetensors").keys() == weights.keys()
    assert stage.run("caption", "one.png", "--model", "it's mine", "-q")[0] == 0


def estimate_of(stage, *words):
    shutil.copytree(EXAMPLES, "many", dirs_exist_ok=True)
    for number in range(20):
        shutil.copy("one.png", f"many/{number}.png")
    code, output = stage.run("caption", "many", "--model", "demo", "--dry-run", *words)
    assert code == 0
    return output


def test_dry_run_loads_no_large_model(stage):
    loaded = []
    stage.patch.setattr(plan, "LARGE_MODEL", 10**6)
    stage.patch.setattr(
        running, "load_engine", lambda *a, **b: loaded.append(1) or pretend.load_model(*a, **b)
    )
    output = estimate_of(stage)
    assert "time: not estimated, as the model is large" in output
    assert not loaded


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
