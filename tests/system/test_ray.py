"""`--ray`: a cluster's engines write the same rows as a single run, whatever is killed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from pgcli.cli.main import main
from pgcli.run import checks
from pgcli.run import model as running
from pgcli.run.status import read_status
from tests.support import pretend
from tests.support.ray_cluster import actors, add_node, client_address, local_cluster, start_run
from tests.support.runs import other_owner, wait_until

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.usefixtures("clean_environment"), pytest.mark.timeout(900)]
SECONDS = 240  # on a busy machine, a Ray process takes half a minute to start
RUNS: list[subprocess.Popen[str]] = []  # that tests have started
Nodes = Callable[[int], list[Any]]
OPTIONS = ("--model", "demo", "--quiet", "--no-timing", "--rows-per-file", "4", "--workers", "0")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    """The current folder, with thirty images and a broken one."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number in range(30):
        Image.new("RGB", (8, 8)).save(f"photos/{number:02}.png")
    Path("photos/07b.png").write_bytes(b"no image")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster with no cores at its head; tests add nodes, whose GPUs are only counted."""
    pytest.importorskip("ray", reason="ray is not installed")
    with local_cluster() as found:
        yield found


@pytest.fixture
def nodes(cluster) -> Iterator[Nodes]:
    """A function that adds nodes with a GPU each; they are removed, and runs killed, at the end."""
    added: list[Any] = []

    def add(count: int) -> list[Any]:
        added.extend(add_node(cluster) for _ in range(count))
        return added

    yield add
    while RUNS:
        RUNS.pop().kill()
    for node in added:
        cluster.remove_node(node)


def command(output: str, *options: str) -> list[str]:
    return ["caption", "photos", "-o", output, *OPTIONS, *options]


def on_ray(cluster: Any, *options: str, address: str = "") -> subprocess.Popen[str]:
    """A run into `rows/` with engines without a model, on the GPUs that the cluster counts."""
    words = command("rows/", *options)
    RUNS.append(start_run(address or cluster.address, words))
    return RUNS[-1]


def finished(run: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = run.communicate(timeout=SECONDS)
    return run.returncode, said


def wait_for(claim: Callable[[], object]) -> None:
    wait_until(claim, SECONDS)


def rows() -> list[dict[str, Any]]:
    return pq.read_table("rows").to_pylist()


def check_all_rows(errors: dict[int, str]) -> None:
    """Every row exists once, in order; only these have errors, besides the broken image."""
    found = rows()
    assert [row["index"] for row in found] == list(range(31))
    assert {row["index"]: row["error"] for row in found if row["error"]} == {
        8: "not_an_image"
    } | errors


def parts() -> int:
    return len(list(Path("rows").glob("*.parquet"))) if Path("rows").is_dir() else 0


@pytest.mark.slow
def test_output_that_another_run_writes_is_an_error(monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    with other_owner("rows/"):
        assert main(command("rows/", "--ray", "auto")) == 12


@pytest.mark.nightly
def test_rows_of_a_cluster_equal_those_of_a_single_run(cluster, nodes, monkeypatch):
    nodes(2)
    code, said = finished(on_ray(cluster))
    assert code == 3, said
    check_all_rows({})
    status = read_status("rows/")
    assert (status.rows, status.total, status.exit_code) == (31, 31, 3)
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    assert main(command("alone/")) == 3
    assert pq.read_table("rows") == pq.read_table("alone")
    assert main(["check", "rows/"]) == 0


@pytest.mark.nightly
def test_engines_actors_nodes_and_drivers_are_killed_and_no_row_is_lost(
    cluster, nodes, monkeypatch
):
    monkeypatch.setenv("CHUNK_SECONDS", "1")
    for number, what in ((3, "kills"), (12, "kills once"), (17, "kills")):
        Path(f"photos/{number:02}.png").rename(f"photos/{number:02} {what}.png")
    added = nodes(2)
    run = on_ray(cluster)
    wait_for(lambda: len(actors()) >= 2 and parts() > 0)
    run.kill()
    finished(run)
    assert 0 < parts() < 8
    before = len(actors())
    run = on_ray(cluster)  # the same command resumes
    wait_for(lambda: len(actors()) >= before + 2)
    cluster.remove_node(added.pop(0), allow_graceful=False)
    nodes(1)
    wait_for(lambda: any(map(psutil.pid_exists, actors())))
    os.kill(max(filter(psutil.pid_exists, actors())), signal.SIGKILL)
    code, said = finished(run)
    assert code == 3, said
    check_all_rows({3: "worker_crashed", 18: "worker_crashed"})


@pytest.mark.nightly
def test_commands_and_script_of_the_page_run(cluster):
    page = (ROOT / "docs" / "how-to" / "ray.md").read_text()
    Path("examples").symlink_to(ROOT / "examples")
    Path("runs").mkdir()
    (command,) = re.findall(r"^pgcli .* --ray auto .*", page, re.M)
    commands = command.replace("--ray auto", f"--ray {cluster.address}")
    (script,) = re.findall(r"```py\n(import ray.*?)```", page, re.S)
    node = cluster.add_node(num_cpus=4)
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    for program in (["sh", "-ec", commands], [sys.executable, "-c", script]):
        run = subprocess.run(
            program, env=environment, capture_output=True, text=True, timeout=250, check=False
        )
        assert run.returncode == 0, run.stderr
    cluster.remove_node(node)
    assert "'id': 'first'" in run.stdout
    assert pq.read_table("runs/ray").num_rows == 12


def test_kubernetes_job_of_the_page_is_valid_yaml_and_a_valid_command():
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    jobs = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.S)]
    (job,) = [job for job in jobs if job["kind"] == "RayJob"]
    command = job["spec"]["entrypoint"].removeprefix("cd /data && pgcli ")
    assert main([*shlex.split(command), "--help"]) == 0


@pytest.mark.nightly
def test_second_driver_of_an_output_is_an_error(cluster, nodes, monkeypatch):
    monkeypatch.setenv("CHUNK_SECONDS", "2")
    nodes(2)
    run = on_ray(cluster)
    wait_for(parts)
    code, said = finished(on_ray(cluster))
    assert code == 12, said
    code, said = finished(run)
    assert code == 3, said
    check_all_rows({})


@pytest.mark.nightly
def test_ctrl_c_keeps_the_answered_rows_of_files_in_progress(cluster, nodes, monkeypatch):
    monkeypatch.setenv("CHUNK_SECONDS", "2")
    nodes(1)
    run = on_ray(cluster, "--rows-per-file", "31")
    wait_for(lambda: Path("notes/met 5").exists())
    run.send_signal(signal.SIGINT)
    code, said = finished(run)
    assert code == -signal.SIGINT, said
    assert parts() == 0
    assert read_status("rows/").rows >= 6
    code, said = finished(on_ray(cluster, "--rows-per-file", "31"))
    assert code == 3, said
    check_all_rows({})
    asked = {int(note.name.split()[1]): note.read_text() for note in Path("notes").glob("met *")}
    assert asked == {index: "x" for index in range(31) if index != 8}, "rows were computed again"


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["raylet", "gcs_server"])
def test_local_cluster_that_dies_ends_the_command_with_17(cluster, monkeypatch, victim):
    monkeypatch.setenv("CHUNK_SECONDS", "300")  # longer than Ray itself would wait
    run = start_run("local", command("rows/"))
    RUNS.append(run)
    wait_for(actors)
    for process in psutil.Process(run.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name() == victim:
                process.kill()
    code, said = finished(run)
    assert code == 17, said
    assert "the same command resumes" in said
    assert "Traceback" not in said
    monkeypatch.setenv("CHUNK_SECONDS", "0")
    RUNS.append(start_run("local", command("rows/")))
    code, said = finished(RUNS[-1])
    assert code == 3, said
    check_all_rows({})


@pytest.mark.nightly
def test_signal_ends_a_command_whose_cluster_has_no_room(cluster):
    run = on_ray(cluster)
    wait_for(lambda: Path("rows.pgcli/run.json").exists())
    sleep(10)  # actors are requested, but none starts
    run.send_signal(signal.SIGTERM)
    began = monotonic()
    code, said = finished(run)
    assert code == -signal.SIGTERM, said
    assert monotonic() - began < 8, "it waits for actors that never start"


@pytest.mark.nightly
def test_command_on_another_machine_is_a_client_of_the_cluster(cluster, nodes):
    nodes(1)
    code, said = finished(on_ray(cluster, address=client_address(cluster)))
    assert code == 3, said
    check_all_rows({})


@pytest.mark.nightly
def test_driver_replaces_an_output_that_nobody_writes(cluster, nodes):
    nodes(2)
    ends = [finished(on_ray(cluster, "--rows-per-file", "3"))]
    record = Path("rows.pgcli/run.json")
    earlier = json.loads(record.read_text())["run_id"]
    with other_owner("rows/"):
        ends.append(finished(on_ray(cluster, "--overwrite")))
    ends.append(finished(on_ray(cluster, "--overwrite")))
    assert [code for code, _ in ends] == [3, 12, 3], ends
    check_all_rows({})
    assert parts() == 8
    assert json.loads(record.read_text())["run_id"] != earlier
