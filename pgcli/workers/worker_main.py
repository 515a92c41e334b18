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

#: For one image, of processor time: a machine that is slow or busy loses no image.
PROCESSOR_SECONDS = 30
#: For one image in all, the waiting for a disk included.
TIME_LIMIT_SECONDS = 300


def serve() -> None:
    """Decode items until stdin ends. The first message describes the decoder and its limit.

    An image that takes too much processor time ends the process by SIGPROF.
    """
    die_with_parent()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a supervisor's too: the parent decides
    pipe = MessagePipe(os.dup(0), os.dup(1), max_data_bytes=MAX_IMAGE_BYTES)
    with open(os.devnull, "r+b") as nothing:  # output of a decoder must not enter the pipe
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    with suppress(BrokenPipeError, EOFError):
        header = pipe.receive().header
        decode, processor_seconds = load_decoder(header), header["processor_seconds"]
        limit_memory()
        Image.MAX_IMAGE_PIXELS = None  # the decoder has the limit that counts
        pipe.send(Message({"ready": True}))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # until now, it said why it cannot start
        while True:
            item = item_from_message(pipe.receive())
            signal.alarm(TIME_LIMIT_SECONDS + 5)  # ends an orphan whose parent has died meanwhile
            signal.setitimer(signal.ITIMER_PROF, processor_seconds)
            image = decode(item)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            pipe.send(image_to_message(image))
