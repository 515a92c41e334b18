"""The main loop of a decoding process: items arrive over a connection, decoded images leave."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection

from PIL import Image

from pgcli.images.limits import (
    ask_for_memory,
    die_with_parent,
    limit_memory,
    limit_processor_time,
)
from pgcli.images.messages import item_from, load_decoder, receive, send, send_image
from pgcli.records import MAX_IMAGE_BYTES

#: For one image, of processor time: a machine that is slow or busy loses no image.
PROCESSOR_SECONDS = 30
#: For one image in all, the waiting for a disk included.
TIME_LIMIT_SECONDS = 300


def serve(descriptor: int) -> None:
    """Decode items until the connection ends. Its first message names the decoder and a limit.

    An image that takes too much processor time ends the process by SIGPROF. Without an answer of
    the parent in time, which has died then, it ends itself.
    """
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a supervisor's too: the parent decides
    connection = Connection(descriptor)

    def claim(size: int) -> None:
        signal.alarm(0)
        send(connection, {"claim": size})
        receive(connection, 0)
        signal.alarm(TIME_LIMIT_SECONDS + 5)

    with suppress(OSError, EOFError):
        description, _ = receive(connection, 0)
        decode = load_decoder(description)
        limit_memory()
        ask_for_memory(claim)
        Image.MAX_IMAGE_PIXELS = None  # the decoder has the limit that counts
        send(connection, {})
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # until now, it said why it cannot start
        while True:
            item = item_from(*receive(connection, MAX_IMAGE_BYTES))
            signal.alarm(TIME_LIMIT_SECONDS + 5)
            limit_processor_time(description["processor_seconds"])
            image = decode(item)
            limit_processor_time(0)
            signal.alarm(0)
            send_image(connection, image)
