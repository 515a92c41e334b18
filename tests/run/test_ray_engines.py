"""`--ray`: actors answer the rows, in any order of calls and after any death."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.errors import NoUsableDevice
from pgcli.records import Answer, DecodedImage
from pgcli.run import checks
from pgcli.run.events import Interrupted
from pgcli.run.workers import ray_engines
from pgcli.run.workers.ray_engines import Actor, Cluster, Resources
from pgcli.run.workers.work import Work
from tests.support import pretend
from tests.support.fake_ray import Death, FakeRay

pytestmark = pytest.mark.usefixtures("workdir")
IMAGES = 20
OPTIONS = ("--model", "demo", "--quiet", "--no-timing", "--rows-per-file", "4", "--workers", "0")
#: What happens when an actor has an image, by the image's number.
ON_IMAGE: dict[int, Callable[[], object]] = {}
ASKED: list[int] = []


class Engine(pretend.Engine):
    def ask(
        self,
        stream: Iterable[tuple[int, DecodedImage]],
        question: Any,
        sampling: object,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Answer]]:
        for number, image in stream:
            ASKED.append(image.item.index)
            ON_IMAGE.get(image.item.index, lambda: None)()
            yield from super().ask([(number, image)], question, sampling, should_stop)


def load_engine(request: object, checkpoint: Any, *_: object) -> Engine:
    engine = Engine()
    engine.label = checkpoint.label
    return engine


@pytest.fixture
def ray(monkeypatch) -> Iterator[FakeRay]:
    """A cluster of one node, which looks at its nodes all the time; and the images of runs."""
    Path("photos").mkdir()
    for number in range(IMAGES):
        Image.new("RGB", (8, 8 + number)).save(f"photos/{number:02}.png")
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    monkeypatch.setattr("pgcli.run.model.load_engine", load_engine)
    monkeypatch.setattr("pgcli.run.model.load_engine", load_engine)
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    monkeypatch.setattr(ray_engines, "LOOK_SECONDS", 0.02)
    ON_IMAGE.clear()
    ASKED.clear()
    yield fake
    assert fake.has_left or not fake.handles
    for handle in fake.handles:
        fake.kill(handle)


@pytest.fixture
def caption(cli) -> Callable[..., Any]:
    """Runs the command on the cluster, into `rows/`; returns its exit code and messages."""

    def run(*options: str) -> tuple[int, str]:
        code, _, err = cli("caption", "photos", "-o", "rows/", *OPTIONS, *options)
        return code, err

    return run


def check_rows(cli: Any, *options: str) -> None:
    """The cluster writes the files of a local run, except for the id of the run."""
    cli("caption", "photos", "-o", "alone/", *OPTIONS, *options)
    assert pq.read_table("rows") == pq.read_table("alone")
    assert footers("rows") == footers("alone")


def footers(folder: str) -> dict[str, dict[bytes, bytes]]:
    """What each file says of its run."""
    metadata = {path.name: pq.read_metadata(path).metadata for path in Path(folder).iterdir()}
    return {
        name: {
            key: text
            for key, text in values.items()
            if key.startswith(b"pgcli") and key != b"pgcli.run"
        }
        for name, values in metadata.items()
    }


def test_rows_do_not_depend_on_the_order_of_calls(ray, caption, cli):
    assert caption("--ray", "auto")[0] == 0
    assert sorted(ASKED) == [*range(IMAGES)]
    assert not list(Path("rows.pgcli").glob("open/*")), "actors write whole files"
    check_rows(cli)


def test_rows_of_a_partly_saved_file_go_to_the_owner(ray, caption, cli):
    def fail() -> None:
        raise NoUsableDevice("out of memory")

    ON_IMAGE[6] = fail
    assert caption()[0] == 17
    assert len([*Path("rows.pgcli/open").iterdir()]) == 1, "rows 4 and 5"
    ON_IMAGE.clear()
    ASKED.remove(6)
    assert caption("--ray", "auto")[0] == 0
    assert sorted(ASKED) == [*range(IMAGES)]
    check_rows(cli)


def test_retry_errors_works_on_ray(ray, caption, cli):
    for number in range(4, 9):
        Path(f"photos/{number:02}.png").rename(f"{number}.png")
        Path(f"photos/{number:02}.png").write_bytes(b"no image")
    assert caption("--ray", "auto")[0] == 3
    for number in range(4, 9):
        Path(f"{number}.png").rename(f"photos/{number:02}.png")
    code, said = caption("--ray", "auto", "--retry-errors")
    assert code == 0, said
    assert sorted(ASKED) == [*range(IMAGES)]
    rows = pq.read_table("rows").to_pylist()
    assert not [row["index"] for row in rows if row["error"]]


def test_changed_image_is_noticed_by_the_next_command(ray, cli):
    names = (f'{{"image": "photos/{number:02}.png"}}' for number in range(IMAGES))
    Path("list.jsonl").write_text("\n".join(names))
    words = ["caption", "list.jsonl", "-o", "rows/", *OPTIONS, "--ray", "auto"]
    assert cli(*words)[0] == 0
    Image.new("RGB", (99, 99), "red").save("photos/07.png")
    code, _, said = cli(*words)
    assert (code, "07.png" in said) == (13, True), said


def test_works_are_taken_in_order(monkeypatch):
    monkeypatch.setattr(Actor, "_run", lambda self: None)
    actor, first, second = Actor(SimpleNamespace()), Work(range(4)), Work(range(4, 8))  # type: ignore[arg-type]
    actor.give(2, None)
    actor.give(1, second)
    assert actor._works.empty()
    actor.give(0, first)
    assert [actor._works.get() for _ in range(3)] == [first, second, None]


def test_dead_actor_is_replaced_and_killer_image_is_an_error_row(ray, caption, cli):
    deaths: list[int] = []

    def kill(number: int, times: int) -> Callable[[], None]:
        def end() -> None:
            deaths.append(number)
            if deaths.count(number) <= times:
                raise Death

        return end

    ON_IMAGE.update({3: kill(3, 9), 9: kill(9, 1)})
    assert caption("--ray", "auto")[0] == 3
    rows = pq.read_table("rows").to_pylist()
    assert [row["index"] for row in rows] == [*range(IMAGES)]
    assert {row["index"]: row["error"] for row in rows if row["error"]} == {3: "worker_crashed"}
    assert deaths.count(3) == 4


def test_lost_node_exits_with_17_and_the_run_resumes(ray, caption, cli):
    ON_IMAGE[9] = lambda: ray.end_node("node 0")
    code, said = caption("--ray", "auto")
    assert code == 17
    assert "the Ray cluster at auto is lost: the node that this command" in said
    assert "the same command resumes" in said
    ON_IMAGE.clear()
    ray.nodes_alive["node 0"] = True
    assert caption("--ray", "auto")[0] == 0
    check_rows(cli)


def test_silent_cluster_exits_with_17(ray, caption, monkeypatch):
    monkeypatch.setattr(ray_engines, "SILENT_SECONDS", 0.3)

    def be_silent() -> None:
        ray.is_silent = True
        ray.end_node("node 0")  # its actors say nothing either
        ray.nodes_alive["node 0"] = True

    ON_IMAGE[9] = be_silent
    code, said = caption("--ray", "auto")
    assert code == 17
    assert "is lost: it has not answered" in said


def test_full_cluster_is_waited_for_with_a_message(ray, cli, monkeypatch):
    monkeypatch.setattr(ray_engines, "NOTE_SECONDS", 0.0)
    looks = iter(range(100))
    words = ["caption", "photos", "-o", "rows/", *OPTIONS, "--ray", "auto"]
    monkeypatch.setattr("tests.support.fake_ray.NODE_ACTORS", 0)
    ray.on_wait = lambda: (
        next(looks) == 3 and monkeypatch.setattr("tests.support.fake_ray.NODE_ACTORS", 2)
    )
    code, _, said = cli(*[word for word in words if word != "--quiet"])
    assert code == 0, said
    assert "still waiting for a machine with 0 free GPUs and 1 free cores" in said


def test_signal_exception_passes_through_ray(ray):
    cluster = Cluster("auto")

    def interrupt() -> None:
        try:
            raise Interrupted(signal.SIGTERM)
        except Interrupted as problem:
            raise SystemError("returned a result with an exception set") from problem

    ray.on_wait = interrupt
    with pytest.raises(Interrupted):
        cluster.wait([SimpleNamespace(has_ended=False)])
    ray.on_wait = lambda: (_ for _ in ()).throw(ConnectionError("Client is shutting down."))
    with pytest.raises(NoUsableDevice, match="is lost: Client is shutting down"):
        cluster.wait([SimpleNamespace(has_ended=False)])
    cluster.leave()


def test_local_cluster_that_does_not_start_is_not_advised(ray, monkeypatch):
    def fail(**options: object) -> None:
        raise RuntimeError("The node timed out during startup.")

    monkeypatch.setattr(ray, "init", fail)
    for address, advises in (("local", False), ("auto", True)):
        with pytest.raises(NoUsableDevice, match="timed out") as problem:
            ray_engines.connect(address)
        assert ("--ray local" in problem.value.hint) == advises


@pytest.mark.parametrize(
    ("gpus", "cpus", "node", "count"),
    [
        (1, 1, {"GPU": 4, "CPU": 8}, 4),
        (0.5, 1, {"GPU": 2, "CPU": 3}, 3),
        (0, 8, {"CPU": 31}, 3),
        (1, 1, {"CPU": 8}, 0),
        (0.1, 0, {"GPU": 1}, 10),
    ],
)
def test_actors_fit_by_the_resources_of_nodes(gpus, cpus, node, count):
    assert Resources(gpus, cpus).fits(node) == count
