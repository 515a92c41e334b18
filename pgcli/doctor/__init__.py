"""Find what is wrong on this machine, each trouble with the command that mends it."""

from __future__ import annotations

from collections.abc import Iterator

from pgcli.doctor import accelerator, hub, machine, packages
from pgcli.doctor.finding import Finding, State

__all__ = ["Finding", "State", "examine", "has_device"]


def examine(*, online: bool = False) -> Iterator[Finding]:
    """Every finding, as each is made. Nothing reaches out unless `online`; nothing is changed.

    Each check stands alone: it works where PyTorch, or anything else, is missing or broken.
    """
    yield packages.python()
    yield packages.this()
    yield from packages.others()
    yield packages.namesake()
    yield packages.command()
    yield from accelerator.findings()
    yield machine.processor()
    yield machine.memory()
    yield machine.temporary()
    yield machine.text()
    yield machine.builtin_model()
    yield hub.cache()
    yield hub.login()
    yield hub.offline()
    if online:
        yield hub.reachable()


def has_device(findings: list[Finding]) -> bool:
    """Whether a model can run here at all: PyTorch computes, if only on the processor."""
    return not any(f.name == accelerator.TORCH and f.state == "bad" for f in findings)
