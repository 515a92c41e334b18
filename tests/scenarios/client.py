"""The program `pgcli` of scenarios: forked from the server, or a process of its own without one.

It is copied into a folder of PATH and run by `python -IS`, which starts in a hundredth of a second.
"""

import array
import json
import os
import signal
import socket
import sys

if not os.environ.get("SCENARIO_SERVER"):
    os.execv(sys.executable, [sys.executable, "-m", "pgcli", *sys.argv[1:]])
connection = socket.socket(socket.AF_UNIX)
connection.connect("\0" + os.environ.pop("SCENARIO_SERVER"))
request = {"arguments": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109
files = array.array("i", [0, 1, 2])
connection.sendmsg(
    [json.dumps(request).encode() + b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
)
for descriptor in files:
    os.close(descriptor)
code = int(connection.recv(16) or b"1")
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
