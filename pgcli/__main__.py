"""The commands `pgcli` and `paligemma-cli`, also as `python -m pgcli`."""

import gc
import os
import signal
import sys
from contextlib import suppress

#: Start-up creates a quarter of a million objects that stay. Collecting garbage every 700 new
#: objects, Python's default, takes a tenth of the time to the first answer.
OBJECTS_BEFORE_COLLECTING = 400_000

#: After each operation torch's threads wait for the next in a loop, by default for milliseconds,
#: which takes the cores from decoding workers and from other programs. After so many rounds they
#: sleep instead.
ROUNDS_BEFORE_SLEEPING = 1_000

#: The signals that the first process of a container forwards.
FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def main() -> int:
    """Run the command line of this process and return the exit code."""
    if sys.getfilesystemencoding() != "utf-8" and "utf8" not in sys._xoptions and sys.executable:
        # ids are names of files, and must not depend on the locale; engines inherit the variable
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    if os.getpid() == 1:
        run_in_child()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C while modules are imported ends the process without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(OBJECTS_BEFORE_COLLECTING)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(ROUNDS_BEFORE_SLEEPING))
    from pgcli.process_end import ends_in_time

    with ends_in_time():
        return run_command()


def run_command() -> int:
    """Import the command line and run it."""
    from pgcli.cli.main import main as run

    try:
        return run()
    finally:
        if "triton" not in sys.modules:  # it prints every object that is left as a leak
            gc.freeze()  # skips two more collections while the process ends


def run_in_child() -> None:
    """Return in a child process; this one forwards signals to it and ends with its exit code.

    For the first process of a container, the kernel drops signals without a handler, so that none
    would end it, and nobody else reaps orphans.
    """
    signals = FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # Ctrl-C in a terminal goes to its foreground group alone
        ignored = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with suppress(OSError):
            os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        signum = signal.sigwait(signals)
        if signum != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(child, signum)
            continue
        process = -1
        while process != 0:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == child:
                code = os.waitstatus_to_exitcode(status)
                os._exit(128 - code if code < 0 else code)


if __name__ == "__main__":
    sys.exit(main())
