"""A Ray cluster on this machine, with nodes whose GPUs are only counted."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import remote_engines
from tests.support.stores import used_store

ROOT = Path(__file__).parents[2]


@contextmanager
def local_cluster() -> Iterator[Any]:
    """A cluster with no cores at its head, and `s3://bucket` for the processes of its nodes."""
    from ray.cluster_utils import Cluster

    os.environ |= {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    # 15 by default: on a busy machine such processes hardly run
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    with used_store(), pytest.MonkeyPatch.context() as patch:  # the engines inherit its credentials
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # Ray would count none
        head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": free_port()}
        found = Cluster(initialize_head=True, head_node_args=head)
        yield found
        found.shutdown()


def free_port() -> int:
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def client_address(cluster: Any) -> str:
    """The address of a cluster for programs on machines outside of it."""
    return f"ray://127.0.0.1:{cluster.head_node._ray_params.ray_client_server_port}"


def add_node(cluster: Any) -> Any:
    """A node with two cores and a GPU, for one engine."""
    return cluster.add_node(num_cpus=2, num_gpus=1)


def start_run(
    address: str, words: Sequence[str], folder: Path | None = None, **environment: str
) -> subprocess.Popen[str]:
    """A run with these arguments on the cluster at an address, with engines without a model."""
    command = [sys.executable, "-m", "tests.support.remote_engines", *words, "--ray", address]
    return subprocess.Popen(
        command, env=os.environ | environment, stderr=subprocess.PIPE, text=True, cwd=folder
    )


def actors(folder: Path = Path()) -> list[int]:
    """The processes so far of the engine actors of runs in this folder."""
    notes = folder / remote_engines.NOTES
    return [int(file.name.split()[1]) for file in notes.glob("actor *")]
