"""The commands `pgcli` and `paligemma-cli`, also as `python -m pgcli`."""

import gc
import os
import signal
import sys

#: Start-up creates a quarter of a million objects that stay. Collecting garbage every 700 new
#: objects, Python's default, takes a tenth of the time to the first answer.
OBJECTS_BEFORE_COLLECTING = 400_000

#: After each operation torch's threads wait for the next in a loop, by default for milliseconds,
#: which takes the cores from decoding workers and from other programs. After so many rounds they
#: sleep instead.
ROUNDS_BEFORE_SLEEPING = 1_000


def main() -> int:
    """Run the command line of this process and return the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C while modules are imported ends the process without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(OBJECTS_BEFORE_COLLECTING)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(ROUNDS_BEFORE_SLEEPING))
    from pgcli.cli.main import main as run

    try:
        return run()
    finally:
        if "triton" not in sys.modules:  # it prints every object that is left as a leak
            gc.freeze()  # skips two more collections while the process ends


if __name__ == "__main__":
    sys.exit(main())
