"""The choice of device and dtype, and the messages when a choice is impossible."""

import sys

import psutil
import pytest
import torch

from pgcli.device import machine as driver
from pgcli.device import select as device_module
from pgcli.device.select import (
    SMALL_CHECKPOINT_BYTES,
    choose_device,
    choose_dtype,
    free_bytes,
)
from pgcli.errors import NoUsableDevice, UsageError

CPU, CUDA, MPS = map(torch.device, ("cpu", "cuda", "mps"))


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many CUDA devices, and perhaps an Apple GPU."""

    def machine(cuda=0, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return machine


class TestDevice:
    def test_auto_prefers_cuda_then_mps_then_the_cpu(self, machine):
        machine(cuda=2, mps=True)
        assert choose_device("auto") == CUDA
        machine(mps=True)
        assert choose_device("auto") == MPS
        machine()
        assert choose_device("auto") == CPU

    def test_without_a_driver_the_error_names_pytorchs_build(self, machine, monkeypatch):
        """tests/cli/test_messages.py has the other cases."""
        machine(mps=True)
        monkeypatch.setattr(torch.version, "cuda", None)
        monkeypatch.setattr(driver, "nvidia_driver", lambda: None)
        for name in ("cuda", "cuda:7"):
            with pytest.raises(NoUsableDevice, match="is for the CPU only"):
                choose_device(name)

    @pytest.mark.parametrize(
        ("count", "said"), [(1, "this machine has 1 CUDA device$"), (4, "has 4 CUDA devices$")]
    )
    def test_a_device_number_out_of_range_names_the_device_count(self, machine, count, said):
        machine(cuda=count)
        with pytest.raises(NoUsableDevice, match=said) as refused:
            choose_device(f"cuda:{count}")
        assert refused.value.hint == f"--device cuda:{count - 1}"

    @pytest.mark.parametrize(
        "name",
        [
            *("", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:01", "cuda:300", "cuda:٣"),
            *("cuda:99999999999999999999", "cuda:0,1", "xpu", "cpu:0", "cpu ", "cuda\n", "meta"),
        ],
    )
    def test_an_unknown_device_is_an_error_that_lists_the_devices(self, machine, name):
        machine(cuda=100)
        with pytest.raises(UsageError, match="unknown device") as refused:
            choose_device(name)
        assert refused.value.exit_code == 2
        assert refused.value.hint == "one of auto, cpu, cuda, cuda:N and mps"


class TestDtype:
    @pytest.mark.parametrize("checkpoint_bytes", [1, 10**10])
    def test_auto_on_cuda_is_bfloat16_if_the_gpu_supports_it(self, monkeypatch, checkpoint_bytes):
        capabilities = {
            CUDA: (9, 0),
            torch.device("cuda:1"): (7, 5),
            torch.device("cuda:2"): (8, 0),
        }
        monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
        chosen = [choose_dtype("auto", device, checkpoint_bytes) for device in capabilities]
        assert chosen == [torch.bfloat16, torch.float32, torch.bfloat16]

    @pytest.mark.parametrize(
        ("stored", "dtype"),
        [
            (SMALL_CHECKPOINT_BYTES, torch.float32),
            (SMALL_CHECKPOINT_BYTES + 1, torch.bfloat16),
            (1, torch.float32),
        ],
    )
    def test_auto_on_the_cpu_is_bfloat16_for_large_checkpoints(self, stored, dtype):
        assert SMALL_CHECKPOINT_BYTES == 10**9
        assert choose_dtype("auto", CPU, stored) == dtype


class TestFreeBytes:
    def test_cpu_free_bytes_are_the_available_memory(self, monkeypatch):
        monkeypatch.setattr(device_module, "memory_left", lambda: None)
        memory = psutil.virtual_memory()
        assert 0 < free_bytes(CPU) <= memory.total
        if sys.platform == "linux":
            assert free_bytes(CPU) == pytest.approx(memory.available, abs=2**29)

    def test_gpu_free_bytes_include_pytorchs_cache(self, monkeypatch):
        for name, found in (
            ("mem_get_info", (50, 100)),
            ("memory_reserved", 40),
            ("memory_allocated", 25),
        ):
            monkeypatch.setattr(torch.cuda, name, lambda device, found=found: found)
        assert free_bytes(CUDA) == 65


GIB = 2**30


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """Control groups as files: this process's membership, and the contents of each folder."""

    def groups(membership, files):
        monkeypatch.setattr(driver, "GROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(driver, "MEMBERSHIP", tmp_path / "membership")
        (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    return groups


class TestContainer:
    def test_free_memory_is_within_the_containers_limit(self, groups):
        groups(
            "0::/\n",
            {
                "memory.max": 3 * GIB,
                "memory.current": GIB,
                "memory.stat": f"anon 5\ninactive_file {GIB // 2}",
            },
        )
        assert driver.memory_left() == 5 * GIB // 2  # the file cache can be reclaimed
        assert free_bytes(CPU) <= 5 * GIB // 2

    def test_cgroup_version_1_files_are_read(self, groups):
        folder = "memory/docker/abc"
        groups(
            "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n",
            {
                f"{folder}/memory.limit_in_bytes": 2 * GIB,
                f"{folder}/memory.usage_in_bytes": GIB,
                f"{folder}/memory.stat": f"total_inactive_file {GIB // 4}\ninactive_file 1",
                "memory/memory.limit_in_bytes": 9223372036854771712,  # no limit
                "memory/memory.usage_in_bytes": 5 * GIB,
                "cpu/docker/abc/cpu.cfs_quota_us": 150000,
                "cpu/docker/abc/cpu.cfs_period_us": 100000,
            },
        )
        assert driver.memory_left() == 5 * GIB // 4
        assert driver.processors() == 1.5 or driver.processors() == 1

    def test_the_smallest_limit_of_all_ancestors_applies(self, groups):
        groups(
            "0::/a/b\n",
            {
                "a/b/memory.max": "max",
                "a/b/memory.current": GIB,
                "a/memory.max": 4 * GIB,
                "a/memory.current": 3 * GIB,
                "memory.max": 8 * GIB,
                "memory.current": 4 * GIB,
                "a/b/cpu.max": "max 100000",
                "a/cpu.max": "50000 100000",
            },
        )
        assert driver.memory_left() == GIB
        assert driver.processors() == 0.5

    @pytest.mark.parametrize(
        ("membership", "files"),
        [
            ("", {}),
            ("0::/\n", {}),
            ("0::/\n", {"memory.max": "max", "memory.current": 5, "cpu.max": "max 100000"}),
            ("4:memory:/gone\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}),
            ("0::/\n", {"memory.max": "nonsense", "memory.current": "", "cpu.max": "0 0"}),
        ],
    )
    def test_without_a_limit_the_machines_memory_counts(self, groups, membership, files):
        groups(membership, files)
        assert driver.memory_left() is None
        assert driver.processors() == psutil.cpu_count() or driver.processors() >= 1


@pytest.mark.parametrize(
    ("device", "cores", "gpus", "processes"),
    [
        ("cpu", 16, 1, None),
        ("cuda", 16, 0, 15),
        ("cuda:1", 192, 8, 24),
        ("cuda:7", 192, 8, 23),
        ("cuda", 192, 1, 32),
        ("cuda", 2.5, 1, 1),
        ("cuda", 1, 1, 1),
    ],
)
def test_all_cores_but_one_decode_for_gpus(monkeypatch, device, cores, gpus, processes):
    """Engines on several GPUs share the processes."""
    monkeypatch.setattr(driver, "installed_gpus", lambda: gpus)
    monkeypatch.setattr(driver, "processors", lambda: cores)
    monkeypatch.setattr(driver.os, "cpu_count", lambda: cores)
    assert driver.decoding_processes(device) == processes
    assert driver.decoding_processes(device, engines=gpus or 1) == processes


def test_a_scheduler_gives_cores_with_a_gpu(monkeypatch):
    """The process sees all eight GPUs of its machine but may use only one."""
    monkeypatch.setattr(driver, "installed_gpus", lambda: 8)
    monkeypatch.setattr(driver, "visible_gpus", lambda: 1)
    monkeypatch.setattr(driver, "processors", lambda: 16)
    monkeypatch.setattr(driver.os, "cpu_count", lambda: 128)
    assert driver.decoding_processes("cuda") == 15
