"""Plants faults and runs their tests: `python -m tests.faults [-n N] [WORD...]`.

Those whose room or name has one of the words, or all; N at a time. Ends with 1 if a test does not
fall.
"""

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.faults.planting import Copy, Fault, read_faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=1, help="faults at a time")
    parser.add_argument("words", nargs="*", help="parts of rooms and names")
    options = parser.parse_args()
    faults = [
        fault
        for fault in read_faults()
        if not options.words or any(word in f"{fault.room}/{fault.name}" for word in options.words)
    ]
    copies: SimpleQueue[Copy] = SimpleQueue()

    def missed(fault: Fault) -> list[str]:
        copy = copies.get()
        try:
            return copy.missed(fault)
        finally:
            copies.put(copy)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.n) as pool:
        for number in range(options.n):
            copies.put(Copy(Path(folder, str(number))))
        caught = 0
        for fault, tests in zip(faults, pool.map(missed, faults), strict=True):
            caught += not tests
            outcome = f"MISSED by {', '.join(tests)}" if tests else "caught"
            sys.stdout.write(f"{fault.room}/{fault.name}: {outcome}\n")
            sys.stdout.flush()
        copy = copies.get()
        broken = copy.fallen(test for fault in faults for test in fault.tests)
    sys.stdout.write(f"{caught} of {len(faults)} faults caught\n")
    for test in sorted(broken):
        sys.stdout.write(f"without a fault, {test} fails too\n")
    return int(caught < len(faults) or bool(broken))


if __name__ == "__main__":
    sys.exit(main())
