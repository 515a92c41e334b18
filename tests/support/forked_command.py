"""The program `pgcli` for shells, forked from a server of `forkserver`: it passes no signals on.

It is run by `python -IS`, so that it starts in a hundredth of a second.
"""

import array
import json
import os
import signal
import socket
import sys

connection = socket.socket(socket.AF_UNIX)
connection.connect("\0" + os.environ["FORKSERVER"])
request = {"arguments": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109
files = array.array("i", [0, 1, 2])
connection.sendmsg(
    [json.dumps(request).encode() + b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
)
for descriptor in files:
    os.close(descriptor)
connection.recv(4)  # its pid
code = int.from_bytes(connection.recv(4), sys.byteorder, signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
