"""Checks this machine; each problem comes with the command that fixes it."""

from __future__ import annotations

from collections.abc import Iterator

from pgcli.doctor import accelerator, machine, packages
from pgcli.doctor.finding import Finding, Severity

__all__ = ["Finding", "Severity", "examine", "has_device"]


def examine() -> Iterator[Finding]:
    """Every finding, as soon as its check is done, without network access.

    Checks are independent of each other: they work if PyTorch or any other package is missing or
    broken, and change nothing.
    """
    yield packages.python()
    yield from packages.requirements()
    yield packages.namesake()
    yield packages.shell_command()
    yield from accelerator.accelerator_findings()
    yield machine.processor()
    yield machine.memory()
    yield from machine.model_findings()
    yield from machine.hub_findings()


def has_device(findings: list[Finding]) -> bool:
    """Whether PyTorch works, so that a model can run at least on the CPU."""
    return not any(f.name == accelerator.TORCH and f.state == "bad" for f in findings)
