"""The command `pgcli`, also as `python -m pgcli`: the program, started and ended quickly."""

import gc
import sys

#: Start-up makes a quarter of a million objects that stay; to look through them for garbage every
#: 700 new ones, as Python does by itself, takes a tenth of the time to the first answer.
OBJECTS_BEFORE_COLLECTING = 200_000


def main() -> int:
    """Run the command line of this process and return its exit code."""
    gc.set_threshold(OBJECTS_BEFORE_COLLECTING)
    from pgcli.cli.app import main as run

    try:
        return run()
    finally:
        gc.freeze()  # or all objects are looked through twice more, now that none is needed


if __name__ == "__main__":
    sys.exit(main())
