"""Writes scenarios again as the program is now: `python -m tests.scenarios.record [NAME...]`."""

import sys
import tempfile
import time
from pathlib import Path

from tests.scenarios.harness import parse, played, scenario_files


def main() -> None:
    """Write the scenarios whose names contain one of the words, or all."""
    words = sys.argv[1:]
    for file in scenario_files():
        name = f"{file.parent.name}/{file.stem}"
        scenario = parse(file.read_text())
        if words and not any(word in name for word in words):
            continue
        if reason := scenario.skip():
            sys.stdout.write(f"{name}: not written, {reason}\n")
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            text = played(scenario, Path(folder)).text()
        file.write_text(text)
        sys.stdout.write(f"{name}: {time.monotonic() - began:.1f} s\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
