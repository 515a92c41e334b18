"""Engines on two and eight pretended GPUs: their devices, dtypes and failures."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pgcli.device import machine as nvidia_driver
from pgcli.device import select
from pgcli.doctor.checks import rows_of_3b
from pgcli.errors import InvalidCheckpoint, NoUsableDevice
from pgcli.run import events, model
from pgcli.run.request import make_request
from pgcli.run.run import run
from pgcli.run.workers import engines, work
from pgcli.run.workers.engine import answer_works, rows_of_task
from pgcli.run.workers.engine_process import EngineDied, EngineFailed
from pgcli.run.workers.work import MIN_ROWS_FOR_ENGINES, EngineSlot, engine_slots
from tests.support import pretend
from tests.support.stub_runs import make_images

GB = 10**9


@pytest.fixture
def gpus(monkeypatch):
    """A machine with these GPUs: compute capability and free gigabytes of each."""

    def gpus(*kinds: tuple[tuple[int, int], int]) -> None:
        monkeypatch.setattr(nvidia_driver, "nvidia_driver", lambda: "580.65.06")
        monkeypatch.setattr(nvidia_driver, "cuda_of_pytorch", lambda: 13)
        monkeypatch.setattr(nvidia_driver, "installed_gpus", lambda: len(kinds))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        fakes = {
            "is_available": lambda: True,
            "device_count": lambda: len(kinds),
            "get_device_capability": lambda device=None: kinds[device.index or 0][0],
            "mem_get_info": lambda device=None: (kinds[device.index or 0][1] * GB, 80 * GB),
            "memory_reserved": lambda device=None: 0,
            "memory_allocated": lambda device=None: 0,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    return gpus


class ThreadEngine:
    """An engine in a thread, in place of one in a process."""

    def __init__(self, engine_task: Any, context: object):
        self.slot = engine_task.slot
        self.connection, self._end = Pipe()
        self._works = SimpleQueue[Any]()
        threading.Thread(target=self._run, args=(engine_task,), daemon=True).start()

    def send(self, work: Any) -> None:
        self._works.put(work)

    def receive(self) -> Any:
        try:
            return self.connection.recv()
        except EOFError as end:
            raise EngineDied("signal 11 ended it") from end

    def close(self) -> None:
        self.connection.close()

    def _run(self, engine_task: Any) -> None:
        works = iter(self._works.get, None)
        try:
            answer_works(
                engine_task, rows_of_task(engine_task), works, lambda: False, self._end.send
            )
            self._end.send(None)
        except SystemExit:  # it dies
            pass
        except Exception as error:  # noqa: BLE001 - the run raises it
            with suppress(OSError):  # the run has ended
                self._end.send(EngineFailed(error, ""))
        finally:
            self._end.close()


class GpuEngine(pretend.Engine):
    """Answers on a pretended GPU, in the dtype and with the batch that it would have there."""

    def __init__(self, device: str):
        chosen = select.choose_device(device)
        dtype = select.choose_dtype("auto", chosen, 10**10)
        self.device, self.dtype = device, str(dtype).removeprefix("torch.")
        self.batch_size = rows_of_3b(dtype.itemsize, select.free_bytes(chosen))


class Machine:
    """Runs of 1,000 rows on the pretended GPUs, with failing engines."""

    def __init__(self, folder: Any, monkeypatch: Any):
        self.folder, self.loaded, self.said = folder, list[GpuEngine](), list[str]()
        self.errors: dict[str, Exception] = {}
        self.tried: list[str] = []  # the devices, as often as a model is loaded there
        self.dies_on = ""  # the device where the first engine dies; others wait for the second
        self.may_answer = threading.Event()
        make_images(folder / "photos", 200)
        monkeypatch.setattr(engines, "EngineProcess", ThreadEngine)
        monkeypatch.setattr(model, "load_engine", self.load)
        monkeypatch.setattr("torch.set_num_threads", lambda threads: None)

    def load(self, request: Any, checkpoint: Any, adapter: Any, device: str) -> GpuEngine:
        self.tried.append(device)
        if device in self.errors:
            raise self.errors[device]
        engine = GpuEngine(device)
        engine.label, ask = checkpoint.label, engine.ask
        dies = device == self.dies_on and self.tried.count(device) == 1
        if not dies and self.dies_on in ("", device):
            self.may_answer.set()

        def ask_or_die(stream: Any, *given: Any, **options: Any) -> Any:
            if dies:
                next(iter(stream))
                raise SystemExit(1)
            assert self.may_answer.wait(60)
            yield from ask(stream, *given, **options)

        engine.ask = ask_or_die  # type: ignore[method-assign]
        self.loaded.append(engine)
        return engine

    def run(self) -> Any:
        def show(event: object) -> None:
            if isinstance(event, events.Message):
                self.said.append(event.text)

        options = {"model": "demo", "workers": 0, "output": str(self.folder / "rows.jsonl")}
        options["prompt"] = tuple("abcde")
        summary = run(make_request("ask", (str(self.folder / "photos"),), options), show)
        assert (summary.tally.rows, summary.exit_code) == (1000, 0)
        return summary


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("number", [2, 8])
def test_each_gpu_answers_with_its_own_dtype_and_memory(gpus, machine, number):
    gpus(*[((8, 0), 7 + index) for index in range(number)])
    assert machine.run().engines == number
    placed = {engine.device: engine for engine in machine.loaded}
    assert set(placed) == {f"cuda:{index}" for index in range(number)}
    assert {engine.dtype for engine in machine.loaded} == {"bfloat16"}
    batches = [placed[f"cuda:{index}"].batch_size for index in range(number)]
    assert len({*batches}) == number, "each has its own memory"


@pytest.mark.parametrize("number", [2, 8])
def test_few_rows_take_one_gpu(gpus, number):
    gpus(*[((9, 0), 70)] * number)
    placed = partial(engine_slots, device="auto", checkpoint_bytes=6 * GB)
    every = [EngineSlot(1, f"cuda:{index}") for index in range(number)]
    assert placed(None, rows=MIN_ROWS_FOR_ENGINES - 1) == every[:1]
    assert placed(None, rows=MIN_ROWS_FOR_ENGINES) == every
    assert placed(2, rows=1) == every[:2], "as the option says"


def test_a_run_of_few_rows_loads_one_model_in_the_program(gpus, machine, monkeypatch):
    monkeypatch.setattr(work, "MIN_ROWS_FOR_ENGINES", 1001)
    gpus(*[((9, 0), 70)] * 8)
    machine.run()
    assert [engine.device for engine in machine.loaded] == ["auto"]


@pytest.mark.parametrize(
    "error",
    [
        NoUsableDevice("there is no cuda:1: this machine has 1"),
        RuntimeError("off the bus"),
        InvalidCheckpoint("damaged"),
    ],
)
def test_a_gpu_that_fails_to_load_ends_the_run(gpus, machine, error):
    gpus(*[((9, 0), 70)] * 2)
    machine.errors = {"cuda:1": error}
    with pytest.raises(type(error), match=str(error)):
        machine.run()


def test_gpus_of_different_dtypes_are_refused(gpus, machine):
    gpus(((8, 6), 20), ((7, 5), 14))
    with pytest.raises(NoUsableDevice, match="the engines differ: dtype: ") as problem:
        machine.run()
    assert "--dtype" in problem.value.hint


@pytest.mark.parametrize("number", [2, 8])
def test_dead_engine_restarts_on_its_gpu(gpus, machine, number):
    gpus(*[((9, 0), 70)] * number)
    machine.dies_on = "cuda:1"
    machine.run()
    assert machine.tried.count("cuda:1") == 2


class Nvml:
    """The functions of NVML on a machine with so many GPUs, or where the first one fails."""

    def __init__(self, number: int, status: int = 0):
        self.nvmlInit_v2 = self.nvmlShutdown = lambda: status
        self.nvmlDeviceGetCount_v2 = lambda pointer: setattr(pointer._obj, "value", number) or 0


@pytest.mark.parametrize(
    ("visible", "number"),
    [
        *[(None, 8), ("", 0), ("-1", 0), ("NoDevFiles", 0), ("0", 1), ("2,3", 2), (" 7 , 0", 2)],
        *[
            ("0,8,1", 1),
            ("1,-1,2", 1),
            ("GPU-8932f937,GPU-5a1c", 2),
            ("MIG-1,MIG-2", 1),
        ],
    ],
)
def test_visible_gpus_follow_cuda_visible_devices(gpus, monkeypatch, visible, number):
    gpus(*[((9, 0), 70)] * 8)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvidia_driver.visible_gpus() == number


@pytest.mark.parametrize(
    ("driver", "built"), [(None, 13), ("580.65.06", None), ("550.54.14", 13)], ids=str
)
def test_unusable_gpus_do_not_count(gpus, monkeypatch, driver, built):
    gpus(((9, 0), 70))
    assert nvidia_driver.visible_gpus() == 1
    monkeypatch.setattr(nvidia_driver, "nvidia_driver", lambda: driver)
    monkeypatch.setattr(nvidia_driver, "cuda_of_pytorch", lambda: built)
    assert nvidia_driver.visible_gpus() == 0


@pytest.mark.parametrize(
    ("nvml", "files", "number"), [(Nvml(8), 1, 8), (Nvml(8, status=9), 2, 2), (None, 3, 3)]
)
def test_gpus_are_counted_by_nvml_or_device_files(monkeypatch, tmp_path, nvml, files, number):
    def load(name: str) -> Any:
        if nvml is None:
            raise OSError(name)
        return nvml

    monkeypatch.setattr("ctypes.CDLL", load)
    monkeypatch.setattr(nvidia_driver, "DEVICES", tmp_path)
    for name in [*(f"nvidia{index}" for index in range(files)), "nvidiactl", "nvidia-uvm"]:
        (tmp_path / name).touch()
    assert nvidia_driver.installed_gpus.__wrapped__() == number


@pytest.mark.parametrize(("text", "cuda"), [("'13.0'", 13), ("'12.6'", 12), ("None", None)])
def test_cuda_version_of_pytorch_is_read_from_its_file(monkeypatch, tmp_path, text, cuda):
    (tmp_path / "version.py").write_text(
        f"cuda: Optional[str] = {text}\nhip: Optional[str] = '7'\n"
    )
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(nvidia_driver, "find_spec", lambda name: spec)
    assert nvidia_driver.cuda_of_pytorch.__wrapped__() == cuda


def test_gpus_are_counted_without_torch():
    code = (
        "import sys\n"
        "from pgcli.device import machine as driver\n"
        "import pgcli.run.answering, pgcli.run.run\n"
        "from pgcli.run.workers.work import engine_slots\n"
        "driver.nvidia_driver, driver.installed_gpus = lambda: '580.65.06', lambda: 8\n"
        "driver.cuda_of_pytorch.__wrapped__()\n"
        "driver.cuda_of_pytorch = lambda: 13\n"
        "assert len(engine_slots(None, 'auto', 10**10, rows=500)) == 8\n"
        "assert 'torch' not in sys.modules\n"
    )
    environ = {name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environ, timeout=60)
