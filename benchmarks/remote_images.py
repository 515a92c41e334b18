"""Measures images/s from a TLS web server with 50 ms latency, and from an S3 server.

    python benchmarks/remote_images.py                       # 5 rounds
    python benchmarks/remote_images.py --code ../other       # the code of another checkout

Both servers run on this machine, in a process of their own. As many images are read at a time as a
run reads. Prints one JSON object with the images/s of each round; S3 includes listing the folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CERTIFICATE = ROOT / "tests" / "support" / "localhost.pem"
IMAGE_BYTES = 100_000
SERVERS = """
import ssl, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from tests.support.stores import S3, serve

certificate, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

class Slow(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        time.sleep(0.05)
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(bytes(size))

server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
server.daemon_threads = True
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=server.serve_forever, daemon=True).start()
with serve(S3, {f"images/{n:04}.png": bytes(size) for n in range(count)}) as s3:
    print(f"https://localhost:{server.server_port}", s3, flush=True)
    sys.stdin.read()
"""
CLIENT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from pgcli.stores import Reader

web, count, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rates = {"web_tls_50ms": [], "s3": []}
for kind in sorted(rates) * rounds:
    reader = Reader(allow_private_hosts=True)
    began = perf_counter()
    if kind == "s3":
        addresses = [f"s3://images/{name}" for name in reader.list_files("s3://images")]
    else:
        addresses = [f"{web}/{n}.png" for n in range(count)]
    with ThreadPoolExecutor(16) as pool:
        assert len(list(pool.map(reader.read, addresses))) == count
    rates[kind].append(round(count / (perf_counter() - began), 1))
    reader.stop()
print(json.dumps(rates))
"""


def main() -> None:
    options = _options()
    servers = [sys.executable, "-c", SERVERS, str(CERTIFICATE), str(IMAGE_BYTES)]
    with subprocess.Popen(
        [*servers, str(options.count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        web, s3 = process.stdout.readline().split()
        known = os.environ | {
            "AWS_ENDPOINT_URL": s3,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "SSL_CERT_FILE": str(CERTIFICATE),
            "PYTHONPATH": str(options.code.resolve()),
        }
        client = [sys.executable, "-P", "-c", CLIENT, web, str(options.count), str(options.rounds)]
        try:
            subprocess.run(client, env=known, check=True)
        finally:
            process.terminate()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--code", type=Path, default=ROOT)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
