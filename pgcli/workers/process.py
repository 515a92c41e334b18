"""The main loop of a worker process: items arrive on stdin, decoded images leave on stdout."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from PIL import Image

from pgcli.records import MAX_IMAGE_BYTES
from pgcli.workers.decoder import load_decoder
from pgcli.workers.message_pipe import Message, MessagePipe
from pgcli.workers.messages import image_to_message, item_from_message
from pgcli.workers.process_limits import die_with_parent, limit_memory

TIME_LIMIT_SECONDS = 30  # for one image


def serve() -> None:
    """Decode items until stdin ends. The first message describes the decoder."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a supervisor's too: the parent decides
    pipe = MessagePipe(os.dup(0), os.dup(1), max_data_bytes=MAX_IMAGE_BYTES)
    with open(os.devnull, "r+b") as nothing:  # output of a decoder must not enter the pipe
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    with suppress(BrokenPipeError, EOFError):
        decode = load_decoder(pipe.receive().header)
        limit_memory()
        Image.MAX_IMAGE_PIXELS = None  # the decoder has the limit that counts
        pipe.send(Message({"ready": True}))
        while True:
            item = item_from_message(pipe.receive())
            signal.alarm(TIME_LIMIT_SECONDS + 5)  # ends an orphan whose parent has died meanwhile
            image = decode(item)
            signal.alarm(0)
            pipe.send(image_to_message(image))
