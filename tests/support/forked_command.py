"""The program `pgcli` for shells, forked from a `forkserver`; it does not forward signals.

Without the variable that names the server it runs in its own process. `python -IS` runs it, so
that it starts in a hundredth of a second.
"""

import array
import json
import os
import signal
import socket
import sys

if not os.environ.get("FORKSERVER"):
    os.execv(sys.executable, [sys.executable, "-m", "pgcli", *sys.argv[1:]])
connection = socket.socket(socket.AF_UNIX)
connection.connect("\0" + os.environ.pop("FORKSERVER"))
request = {"arguments": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109
files = array.array("i", [0, 1, 2])
connection.sendmsg(
    [json.dumps(request).encode() + b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
)
for descriptor in files:
    os.close(descriptor)
connection.recv(4)  # its pid
code = int.from_bytes(connection.recv(4) or b"\1", sys.byteorder, signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
