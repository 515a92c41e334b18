"""`pgcli doctor` finds each problem and shows the command that fixes it."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants
from rich.console import Console

from pgcli.checkpoints.find import BUILTIN
from pgcli.cli import reports
from pgcli.cli.commands.models import check_config
from pgcli.cli.main import main
from pgcli.device import machine as nvidia_driver
from pgcli.doctor import checks
from pgcli.doctor.checks import bad, ok
from pgcli.model.cuda.optimize import triton_problem
from tests.support.kernels import simulate

ROOT = Path(__file__).parents[2]
SECRET = "hf_not_to_be_shown"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """No Hub variables except a temporary HF_HOME."""
    for name in os.environ:
        if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))  # for child processes
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))


def doctor_run(*arguments, code="", **environment):
    """Run doctor in a new process, after the statements of `code`."""
    command = f"import sys; {code}\nfrom pgcli.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", command, "doctor", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
        timeout=100,
    )


class TestCommand:
    def test_every_problem_comes_with_a_remedy(self):
        run = doctor_run("--json")
        assert (run.returncode, run.stderr) == (0, "")
        values = json.loads(run.stdout)
        names = [check["name"] for check in values["checks"]]
        assert len(set(names)) == len(names)
        assert {"python", "packages", "pytorch", "gpu", "memory", "cache", "login"} <= set(names)
        for check in values["checks"]:
            assert (check["state"] == "ok") == (not check["remedy"])
        assert values["state"] in ("ok", "warn", "bad")

    def test_without_pytorch_it_shows_the_rest_and_exits_with_17(self):
        run = doctor_run(code="sys.modules['torch'] = None")
        assert run.returncode == 17
        lines = [line.split("\t") for line in run.stdout.splitlines()]
        states = {name: state for state, name, *_ in lines}
        assert states["pytorch"] == "bad"
        assert {"memory", "cache", "model demo"} <= states.keys()
        assert "PyTorch" in run.stderr
        assert "pip install" in run.stderr
        assert "Traceback" not in run.stderr

    @pytest.mark.parametrize("error", ["OSError('libcudart.so.13')", "AttributeError('x')"])
    def test_a_broken_pytorch_is_a_finding(self, tmp_path, error):
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text(f"raise {error}")
        run = doctor_run(code=f"sys.path.insert(0, {str(tmp_path)!r})")
        assert run.returncode == 17
        assert "is broken" in run.stderr

    def test_warnings_end_with_0_and_no_token_is_shown(self, capsys, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", SECRET)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert main(["doctor"]) == 0
        values = "".join(capsys.readouterr())
        assert SECRET not in values
        assert "token from HF_TOKEN" in values
        assert "unset HF_HUB_OFFLINE" in values

    def test_terminal_shows_a_table(self, monkeypatch, capsys):
        monkeypatch.setattr("pgcli.cli.console.is_terminal", lambda stream: True)
        assert main(["doctor"]) == 0
        shown_table = capsys.readouterr().out
        assert "model demo-towers" in shown_table
        assert "→ hf auth login" in shown_table

    def test_control_characters_do_not_reach_the_terminal(self):
        finding = bad("x", "\x1b[31mred", "rm \x07")
        console = Console(record=True, force_terminal=False, width=80)
        with console.capture() as printed:
            console.print(reports.findings_table([finding]))
        assert not {"\x1b", "\x07"} & set(printed.get())

    def test_invalid_configuration_file_is_named(self, tmp_path):
        file = tmp_path / "config.toml"
        file.touch()
        assert check_config(str(file)).state == "ok"
        file.write_text("nonsense = ")
        found = check_config(str(file))
        assert (found.state, str(file) in found.description) == ("bad", True)


def pretended(*, cuda="13.0", available=False, capabilities=((9, 0),), free=(70,), fails=None):
    """A PyTorch built for a CUDA version, on a machine with or without a GPU."""

    def ones(*_, **__):
        if fails:
            raise RuntimeError(fails)
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 8))

    return SimpleNamespace(
        ones=ones,
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            is_available=lambda: available,
            device_count=lambda: len(capabilities),
            get_device_properties=lambda _: SimpleNamespace(name="GPU", total_memory=80 * 10**9),
            mem_get_info=lambda index: (free[index] * 10**9, 80 * 10**9),
            get_device_capability=lambda index: capabilities[index],
        ),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False)),
    )


class TestAccelerator:
    def test_driver_version_is_read_from_the_kernel(self, monkeypatch, tmp_path):
        file = tmp_path / "version"
        file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n")
        monkeypatch.setattr(nvidia_driver, "DRIVER_FILE", file)
        assert nvidia_driver.nvidia_driver() == "535.129.03"

    @pytest.mark.parametrize(
        ("pytorch", "driver", "state", "found", "remedy"),
        [
            ({"cuda": None}, "580.65.06", "bad", "CPU only", "cu130"),
            ({"cuda": None}, "535.1", "bad", "CPU only", "cu126"),
            ({"cuda": None}, "470.1", "bad", "CPU only", "cu118"),
            ({"cuda": "13.0"}, "550.54.14", "bad", "too old", "cu126"),
            ({}, None, "ok", "", ""),
        ],
    )
    def test_gpu_is_shown_or_has_a_wheel_that_fits(self, pytorch, driver, state, found, remedy):
        finding = checks.no_gpu(pretended(**pytorch), driver)
        assert (finding.state, found in finding.description) == (state, True)
        assert remedy in finding.remedy

    @pytest.mark.parametrize(
        ("capability", "free", "state", "found"),
        [
            ((9, 0), 70, "ok", "cuda:1, GPU, 80.0 GB, 70.0 GB free, bfloat16, 256 images at once"),
            ((7, 5), 60, "warn", "no bfloat16: float32, at twice the memory, 256 images at once"),
            ((8, 6), 7, "warn", "7.0 GB free, bfloat16, 1"),
            ((8, 0), 3, "warn", "3.0 GB free, bfloat16, too small for a 3b model; other programs"),
        ],
    )
    def test_each_gpu_is_shown_with_its_dtype_and_batch_size(self, capability, free, state, found):
        pytorch = pretended(available=True, capabilities=(None, capability), free=(0, free))
        finding = checks.gpu(pytorch, 1)
        assert (finding.state, found in finding.description) == (state, True), finding.description

    def test_a_gpu_that_cannot_compute_is_bad(self):
        finding = checks.gpu(pretended(available=True, fails="no kernel image"), 0)
        assert (finding.state, "no kernel image" in finding.description) == ("bad", True)

    @pytest.mark.parametrize(
        ("has_triton", "problem", "state", "remedy"),
        [
            (True, "Failed to find C compiler", "warn", "apt-get install gcc python3-dev"),
            (False, "No module named 'triton'", "warn", f"{sys.executable} -m pip install triton"),
            (True, "", "ok", ""),
        ],
    )
    def test_kernels_are_tried_on_each_gpu(self, monkeypatch, has_triton, problem, state, remedy):
        monkeypatch.setattr("pgcli.model.cuda.optimize.triton_problem", lambda device: problem)
        monkeypatch.setattr(checks, "find_spec", lambda name: name if has_triton else None)
        monkeypatch.setattr(checks, "nvidia_driver", lambda: None)
        pytorch = pretended(available=True, capabilities=((9, 0), (8, 6)), free=(70, 20))
        pytorch.__version__, pytorch.get_num_threads = "2.13", lambda: 2
        monkeypatch.setattr(checks, "imported", lambda: pytorch)
        names = [finding.name for finding in checks.accelerator_findings()]
        assert names == ["pytorch", "gpu", "kernels", "gpu", "kernels"]
        found = checks.kernels(1)
        assert (found.name, found.state, found.remedy) == ("kernels", state, remedy)
        assert problem in found.description

    def test_a_kernel_that_cannot_be_built_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "triton", None)
        assert "triton" in triton_problem(torch.device("cpu"))

    def test_hidden_gpu_is_reported(self, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        found = checks.no_gpu(pretended(), "580.65.06")
        assert found.remedy == "unset CUDA_VISIBLE_DEVICES"

    @pytest.mark.parametrize(
        ("kind", "description"),
        [
            ("avx2", "no VNNI: multiplies bfloat16 and int8 weights in float32"),
            ("vnni", "VNNI without bfloat16: multiplies int8, and bfloat16 weights in float32"),
            ("bfloat16", "AVX-512 with bfloat16: multiplies bfloat16 and int8"),
            ("tiles", "AMX: multiplies bfloat16 and int8"),
        ],
    )
    def test_kind_of_the_processor_is_shown(self, monkeypatch, kind, description):
        simulate(monkeypatch, kind)
        finding = checks.dtypes(pretended())
        assert (finding.state, finding.description) == ("ok", f"on the CPU, {description}")


class TestPackages:
    def test_missing_and_old_packages_are_reported(self, monkeypatch):
        requirements = [
            "torch>=2.6",
            "pillow>=12.1",
            "numpy",
            'pytest>=8; extra == "dev"',
            "rich (>=13)",
        ]
        there = {"torch": "2.5.1+cu124", "pillow": "12.10", "rich": "13.0.0"}

        def version(name):
            if name not in there:
                raise metadata.PackageNotFoundError(name)
            return there[name]

        monkeypatch.setattr(metadata, "requires", lambda name: requirements)
        monkeypatch.setattr(metadata, "version", version)
        remedies = {f.name: (f.state, f.remedy) for f in checks.requirements()}
        assert set(remedies) == {"torch", "numpy"}
        assert {state for state, _ in remedies.values()} == {"bad"}
        assert remedies["torch"][1].endswith("-m pip install 'torch>=2.6'")
        there["torch"], there["numpy"], there["paligemma-cli"] = "2.6.0+cpu", "2.0", "1.0"
        (found,) = checks.requirements()
        assert (found.name, found.state) == ("packages", "ok")

    def test_postgresql_client_of_the_same_name_is_reported(self, monkeypatch):
        assert checks.namesake().state == "ok"
        monkeypatch.setattr(metadata, "version", lambda name: "4.1.0")
        assert checks.namesake().state == "bad"
        assert "uninstall -y pgcli" in checks.namesake().remedy


class TestMachine:
    def test_the_built_in_models_are_intact_and_a_truncated_one_is_not(self, tmp_path):
        assert {finding.state for finding in checks.model_findings()} == {"ok"}

        def state():
            (finding,) = checks.model_findings({"cut": tmp_path})
            return finding.state

        assert state() == "bad"
        for name in checks.MODEL_FILES[:2]:
            (tmp_path / name).write_bytes((BUILTIN / name).read_bytes())
        data = (BUILTIN / checks.MODEL_FILES[2]).read_bytes()
        for cut in (data[:-1], data[:100], b""):
            (tmp_path / checks.MODEL_FILES[2]).write_bytes(cut)
            assert state() == "bad"
        (tmp_path / checks.MODEL_FILES[2]).write_bytes(data)
        assert state() == "ok"

    @pytest.mark.parametrize(
        ("granted", "threads", "remedy"),
        [
            (2.0, "", "export OMP_NUM_THREADS=2"),
            (2.0, "16", "export OMP_NUM_THREADS=2"),
            (2.0, "2", ""),
            (16, "", ""),
        ],
    )
    def test_threads_fit_the_limit_of_the_container(self, monkeypatch, granted, threads, remedy):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setattr(checks.machine, "processors", lambda: granted)
        monkeypatch.setattr(os, "cpu_count", lambda: 16)
        assert checks.processor().remedy == remedy

    def test_low_memory_is_reported_with_its_limit(self, monkeypatch):
        monkeypatch.setattr(checks.machine, "memory_left", lambda: 2 * 10**9)
        found = checks.memory()
        assert (found.state, "2.0 GB free" in found.description) == ("warn", True)
        assert "container limit" in found.description


class TestHub:
    def test_space_on_the_disk_of_the_cache(self, monkeypatch, tmp_path):
        folder = tmp_path / "home" / "hub"
        assert f"{folder}, " in checks.cache(folder).description
        free = SimpleNamespace(free=10**9)
        monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: free)
        assert checks.cache(folder).state == "warn"

    @pytest.mark.parametrize("kind", ["file", "dangling link"])
    def test_cache_that_cannot_be_written_is_named(self, monkeypatch, tmp_path, kind):
        home = tmp_path / "home"
        home.touch() if kind == "file" else home.symlink_to("missing/folder")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        findings = {finding.name: finding for finding in checks.hub_findings()}
        assert findings["cache"].state == "bad"
        assert f"{home}/hub is not writable" in findings["cache"].description
        assert "HF_HOME" in findings["cache"].remedy
        assert (findings["login"].state == "bad") == (kind == "file")

    def test_a_token_is_found_and_never_shown(self, tmp_path, monkeypatch):
        file = tmp_path / "token"
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(file))
        assert checks.login().remedy == "hf auth login"
        file.write_text(SECRET + "\n")
        assert checks.login() == ok("login", "token from `hf auth login`")
        monkeypatch.setenv("HF_TOKEN", f"{SECRET}_of_somebody_else")
        assert checks.login() == ok("login", "token from HF_TOKEN")
