"""--inline shows images in terminals that can show them, and nothing elsewhere."""

from __future__ import annotations

import base64
import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pgcli.views import terminal_image
from tests.support.awkward import drawing

ROOT = Path(__file__).parents[2]
KITTY = re.compile(r"\x1b_G(?:a=T,f=100,q=2,)?m=([01]);([^\x1b]*)\x1b\\")


def of_kitty(text: str) -> Image.Image:
    pieces = KITTY.findall(text)
    assert [more for more, _ in pieces] == ["1"] * (len(pieces) - 1) + ["0"]
    assert all(len(piece) <= 4096 for _, piece in pieces)
    return Image.open(io.BytesIO(base64.b64decode("".join(piece for _, piece in pieces))))


def of_iterm(text: str) -> Image.Image:
    (data,) = re.findall(r"\x1b\]1337;File=inline=1;[^:]*:([^\x1b]*)\x1b\\", text)
    return Image.open(io.BytesIO(base64.b64decode(data)))


def of_sixel(text: str) -> Image.Image:
    """Decode sixel data to an image."""
    (width, height, data), *_ = re.findall(r'\x1bPq"1;1;(\d+);(\d+)([^\x1b]*)\x1b\\', text)
    pixels = np.zeros((int(height) + 6, int(width), 3), np.uint8)
    colours, colour, x, top = {}, 0, 0, 0
    for word in re.findall(r"#\d+(?:;2;\d+;\d+;\d+)?|!\d+[?-~]|[?-~]|[$-]", data):
        if word[0] == "#":
            number, *parts = map(int, word[1:].split(";"))
            colour = number
            if parts:
                colours[number] = [round(part * 2.55) for part in parts[1:]]
        elif word in "$-":
            x, top = 0, top + 6 * (word == "-")
        else:
            count, letter = (int(word[1:-1]), word[-1]) if word[0] == "!" else (1, word)
            for row in range(6):
                if (ord(letter) - 63) >> row & 1:
                    pixels[top + row, x : x + count] = colours[colour]
            x += count
    return Image.fromarray(pixels[: int(height)])


@pytest.mark.parametrize(
    ("protocol", "decoded", "most"),
    [("kitty", of_kitty, 0), ("iterm", of_iterm, 0), ("sixel", of_sixel, 12)],
)
@pytest.mark.parametrize("size", [(40, 30), (1, 1), (7, 13), (1200, 90), (300, 900)])
def test_terminal_image_shows_the_same_pixels(protocol, decoded, most, size) -> None:
    image = drawing(*size)
    shown = decoded(terminal_image.encode_image(image, protocol)).convert("RGB")
    expected = image.copy()
    expected.thumbnail(terminal_image.MAX_SIZE)
    assert shown.size == expected.size
    apart = np.abs(np.asarray(shown).astype(int) - np.asarray(expected))
    assert apart.mean() <= most
    assert image.size == size, "the image itself stays"


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({"KITTY_WINDOW_ID": "1", "TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "dumb"}, None),
        ({}, None),
        ({"TERM": "xterm-kitty", "KITTY_WINDOW_ID": "1", "TMUX": "/tmp/x"}, None),
        ({"TERM": "screen-256color", "TERM_PROGRAM": "iTerm.app"}, None),
    ],
)
def test_terminal_protocol_is_chosen_by_the_environment(environment, protocol) -> None:
    assert terminal_image.detect_protocol(environment) == protocol


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """The output of the program on a terminal, standard output and error together."""
    outer, inner = pty.openpty()
    known = ("TERM", "TERM_PROGRAM", "LC_TERMINAL", "KITTY_WINDOW_ID", "TMUX")
    rest = {name: value for name, value in os.environ.items() if name not in known}
    pretend = str(ROOT / "tests" / "support" / "pretend.py")
    command = [sys.executable, pretend, *arguments, "--model", "demo"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=inner,
        stderr=inner,
        cwd=ROOT,
        env={**rest, **environment, "PYTHONPATH": str(ROOT)},
    ):
        os.close(inner)
        written = b""
        while True:
            try:
                piece = os.read(outer, 65536)
            except OSError:
                break
            written += piece
    os.close(outer)
    return written.decode()


@pytest.mark.nightly
def test_inline_images_are_above_their_answers() -> None:
    source = "examples/images"
    text = on_a_terminal("caption", source, "--inline", "--limit", "2", TERM="xterm-kitty")
    first, second = re.split(r"\r\n(?=alike\.png: |blue\.png: )", text)[:2]
    assert of_kitty(first).size == (410, 249)
    assert second.startswith("alike.png: an image of 410 x 249")
    plain = on_a_terminal("caption", source, "--inline", "--limit", "2", TERM="xterm-256color")
    assert "\x1b_G" not in plain
    assert "alike.png: an image of" in plain


def test_pipe_gets_rows_without_images() -> None:
    command = [sys.executable, "tests/support/pretend.py", "caption", "examples/images", "--inline"]
    environment = os.environ | {"TERM": "xterm-kitty", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [*command, "--model", "demo", "--limit", "2"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=True,
        timeout=100,
    )
    assert b"\x1b" not in run.stdout
    assert len(run.stdout.splitlines()) == 2
