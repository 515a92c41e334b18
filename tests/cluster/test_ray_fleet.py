"""Engines on a Ray cluster: its address, and what is said while it has no room. Needs no Ray."""

from __future__ import annotations

import socket
from unittest.mock import MagicMock

import pytest

from pgcli.cluster import ray_fleet
from pgcli.cluster.ray_fleet import EngineResources, RayFleet, check_address, connect
from pgcli.errors import NoUsableDevice


@pytest.mark.parametrize("address", ["{}", "ray://{}"])
def test_address_without_a_cluster_is_an_error_at_once(address: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nothing listens there
        where = address.format(f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(NoUsableDevice, match=f"no Ray cluster at {where}: .*refused"):
            connect(where)
        unused.listen()
        check_address(where)


@pytest.mark.parametrize("address", ["auto", "local", "ray://head", "head:"])
def test_addresses_without_a_port_are_left_to_ray(address: str) -> None:
    check_address(address)


def test_run_without_room_for_an_engine_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, now = MagicMock(), [0.0]
    said: list[str] = []
    ray.nodes.return_value = [{"Alive": True, "Resources": {"CPU": 4.0}}] * 2
    ray.wait.return_value = ([], [])
    monkeypatch.setattr(ray_fleet, "connect", lambda address: ray)
    monkeypatch.setattr(ray_fleet, "monotonic", lambda: now[0])
    found = RayFleet("local", MagicMock(), lambda has_gpus: EngineResources(1, 1), said.append)
    for now[0] in (1.0, 29.0, 31.0, 90.0):
        found.grow(3)
        assert found.events() == []
        assert len(said) == (now[0] > 30)
    assert "each takes 1 GPUs and 1 cores of a machine" in said[0]
    assert "the cluster has 0 GPUs and 8 cores" in said[0]


def test_nothing_is_said_once_an_engine_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, now = MagicMock(), [0.0]
    ray.nodes.return_value = [{"Alive": True, "Resources": {"CPU": 4.0}}]
    ray.wait.side_effect = lambda calls, **_: (calls[:1], calls[1:])
    monkeypatch.setattr(ray_fleet, "connect", lambda address: ray)
    monkeypatch.setattr(ray_fleet, "monotonic", lambda: now[0])
    said: list[str] = []
    found = RayFleet("local", MagicMock(), lambda has_gpus: EngineResources(0, 1), said.append)
    for now[0] in (1.0, 31.0):
        found.grow(3)
        found.events()
    assert said == []
