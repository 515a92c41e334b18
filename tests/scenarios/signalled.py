"""`signalled NAME LINES FILE COMMAND...`: the command gets a signal once FILE has LINES lines.

With `--feed INPUT` in front, its standard input is a pipe that has INPUT and stays open.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def heed_signals() -> None:
    """Restore what the shell may have ignored."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


words = sys.argv[1:]
feed = None
if words[0] == "--feed":
    feed, words = Path(words[1]).read_bytes(), words[2:]
name, lines, file, command = words[0], int(words[1]), Path(words[2]), words[3:]
environment = {key: value for key, value in os.environ.items() if key != "FORKSERVER"}
process = subprocess.Popen(
    command, stdin=feed and subprocess.PIPE, env=environment, preexec_fn=heed_signals
)
if feed and process.stdin:
    process.stdin.write(feed)
    process.stdin.flush()
deadline = time.monotonic() + 60
while process.poll() is None and time.monotonic() < deadline:
    if file.exists() and file.read_bytes().count(b"\n") >= lines:
        process.send_signal(signal.Signals[f"SIG{name}"])
        break
    time.sleep(0.01)
code = process.wait(timeout=60)
sys.exit(128 - code if code < 0 else code)
