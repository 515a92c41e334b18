"""Fixtures of many tests: tiny checkpoints, devices, a clean environment; CI's rule for skips."""

import gc
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # tests run in parallel: threads would wait for each other
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests do not access the network
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import hypothesis
import pytest

from tests.support.repository import unexpected

#: Variables of the user that the program, or what it prints on, would follow.
OF_THE_USER = ("FORCE_COLOR", "NO_COLOR", "COLUMNS")
for name in [one for one in os.environ if one.startswith("PGCLI_") or one in OF_THE_USER]:
    del os.environ[name]

# without bytecode, each process of a test would compile pgcli again, and each pytest the tests
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts its background jobs with Ctrl-C ignored, and the programs of tests inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("unhurried", deadline=None)  # tests run on busy machines
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)  # the same each time
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "unhurried")


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory) -> None:
    """Tests read no configuration of the user, and keep no digests with those of the user."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        os.environ[name] = str(tmp_path_factory.mktemp(name))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A random checkpoint of a few thousand weights; tests do not change it."""
    from tests.support.tiny import checkpoint_into

    return checkpoint_into(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny2(tmp_path_factory) -> Path:
    """A checkpoint of the second generation, whose sliding window and softcaps have an effect."""
    from tests.support.tiny import checkpoint_into

    return checkpoint_into(tmp_path_factory.mktemp("tiny2"), generation=2)


@pytest.fixture(params=[1, 2], ids=["gemma", "gemma2"])
def base(request, tiny, tiny2) -> Path:
    """A checkpoint of each generation."""
    return tiny if request.param == 1 else tiny2


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    """Each device of this machine that tests run on."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    return str(request.param)


@pytest.fixture
def clean_environment(monkeypatch, tmp_path) -> None:
    """No settings of the user, and fixed terminal settings, also in subprocesses."""
    for name in os.environ:
        if name.startswith("PGCLI_") or name in OF_THE_USER:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


@pytest.fixture
def workdir(clean_environment, tmp_path, monkeypatch) -> Path:
    """The current folder: an empty one, in a clean environment."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(clean_environment, capsys) -> Any:
    """Runs commands in this process: a `Command`."""
    from tests.support.runs import Command

    return Command(capsys)


@pytest.fixture
def pretended(monkeypatch) -> None:
    """A model that needs no loading, for commands in this process."""
    from tests.support import pretend

    monkeypatch.setattr("pgcli.run.model.load_engine", pretend.load_engine)


pytest_plugins = ["pytester"]


@pytest.hookimpl(optionalhook=True)
def pytest_configure(config: pytest.Config) -> None:
    """`-m gpu` runs the tests that need a GPU; all others see none, so that they are the same
    everywhere.
    """
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if config.option.markexpr != "gpu" or not Path("/dev/nvidiactl").exists():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read by Triton's import, also PyTorch's


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers begin with consecutive tests, which share fixtures and imports, and even out at the
    end.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


SLOW_TIMEOUT_SECONDS = 900  # hangs end here, also on a busy machine; pyproject.toml has the others


#: Of the kinds of runs in tests/support/stub_runs.py, those that the default tests disturb.
USUAL_RUNS = ("lines", "folder", "parquet of engines")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Disturbed runs of other kinds are slow tests; those may take longer before they count as
    hanging.
    """
    for item in items:
        kind = item.callspec.params.get("kind") if hasattr(item, "callspec") else None
        if kind is not None and item.path.parent.name == "run" and kind not in USUAL_RUNS:
            item.add_marker(pytest.mark.slow)
        is_slow = item.get_closest_marker("slow") or item.get_closest_marker("nightly")
        if is_slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_SECONDS))


def pytest_collection_finish() -> None:
    """What is imported stays: garbage collections, also those of forks, need not look at it."""
    gc.collect()
    gc.freeze()


SKIPPED: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the reasons of skips; xdist repeats the workers' reports here."""
    if report.skipped and isinstance(report.longrepr, tuple):
        SKIPPED[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that is skipped as a whole is reported when it is collected."""
    if report.skipped and isinstance(report.longrepr, tuple):
        SKIPPED[report.longrepr[2].removeprefix("Skipped: ")] += 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI, a skip that tests/support/repository.py does not allow fails the run."""
    if os.environ.get("CI") and unexpected(SKIPPED) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the skips that CI does not allow."""
    for line in unexpected(SKIPPED) if os.environ.get("CI") else ():
        terminalreporter.write_line(f"unexpected skip: {line}", red=True)
