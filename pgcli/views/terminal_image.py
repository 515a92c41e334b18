"""An image as the escape sequences of a terminal: kitty's or iTerm2's protocol, or sixels."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
from PIL import Image

TerminalProtocol = Literal["kitty", "iterm", "sixel"]
#: The protocols of terminals by the variable TERM_PROGRAM or LC_TERMINAL.
PROTOCOL_OF_PROGRAM: Mapping[str, TerminalProtocol] = {
    "iTerm.app": "iterm",
    "WezTerm": "iterm",
    "mintty": "iterm",
    "ghostty": "kitty",
}
#: The protocols of terminals by the variable TERM.
PROTOCOL_OF_TERM: Mapping[str, TerminalProtocol] = {
    "xterm-kitty": "kitty",
    "xterm-ghostty": "kitty",
    "foot": "sixel",
    "foot-extra": "sixel",
    "mlterm": "sixel",
    "contour": "sixel",
    "yaft-256color": "sixel",
}
MAX_SIZE = (480, 320)  # pixels: a few lines of text
KITTY_CHUNK = 4096  # bytes of base64 in one escape sequence, kitty's limit
SIXEL_COLOURS = 255
START, END = "\x1b", "\x1b\\"


def detect_protocol(environment: Mapping[str, str]) -> TerminalProtocol | None:
    """The protocol of the terminal in this environment; None if it is unknown.

    The terminal is not queried: an answer would arrive on standard input, which may hold paths. A
    multiplexer (tmux, screen) does not pass images on, whatever terminal it runs in.
    """
    if "TMUX" in environment or environment.get("TERM", "").startswith("screen"):
        return None
    if "KITTY_WINDOW_ID" in environment:
        return "kitty"
    program = environment.get("TERM_PROGRAM") or environment.get("LC_TERMINAL") or ""
    if "iterm" in program.lower():
        return "iterm"
    return PROTOCOL_OF_PROGRAM.get(program) or PROTOCOL_OF_TERM.get(environment.get("TERM", ""))


def encode_image(image: Image.Image, protocol: TerminalProtocol) -> str:
    """The escape sequences that show an RGB image, scaled down to `MAX_SIZE`, and a newline."""
    image = image.copy()
    image.thumbnail(MAX_SIZE)
    encode = {"kitty": encode_kitty, "iterm": encode_iterm, "sixel": encode_sixel}[protocol]
    return f"{encode(image)}\n"


def encode_png(image: Image.Image) -> str:
    """The image as a PNG file in base64."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def encode_kitty(image: Image.Image) -> str:
    """Kitty's graphics protocol: a PNG in chunks; `m=1` on every chunk except the last."""
    data = encode_png(image)
    chunks = [data[start : start + KITTY_CHUNK] for start in range(0, len(data), KITTY_CHUNK)]
    last = len(chunks) - 1
    return "".join(
        f"{START}_G{'a=T,f=100,q=2,' if not number else ''}m={int(number < last)};{chunk}{END}"
        for number, chunk in enumerate(chunks)
    )


def encode_iterm(image: Image.Image) -> str:
    """iTerm2's inline images protocol."""
    size = f"width={image.width}px;height={image.height}px"
    return f"{START}]1337;File=inline=1;preserveAspectRatio=1;{size}:{encode_png(image)}{END}"


def encode_sixel(image: Image.Image) -> str:
    """Sixels: bands of six pixel rows, each drawn in one pass for every colour in it."""
    palette = image.quantize(SIXEL_COLOURS)
    indices = np.asarray(palette)
    colours = np.asarray(palette.getpalette() or [], dtype=np.int64).reshape(-1, 3) * 100 // 255
    header = "".join(f"#{n};2;{r};{g};{b}" for n, (r, g, b) in enumerate(colours))
    bands = "-".join(encode_band(indices[top : top + 6]) for top in range(0, len(indices), 6))
    return f'{START}Pq"1;1;{image.width};{image.height}{header}{bands}{END}'


def encode_band(indices: np.ndarray) -> str:
    """One band: an array (rows, width) of at most six rows of colour indices."""
    bit_of_row = 1 << np.arange(len(indices))[:, None]
    passes = []
    for colour in np.unique(indices):
        bits = ((indices == colour) * bit_of_row).sum(axis=0)
        passes.append(f"#{colour}{''.join(run_lengths(bits))}")
    return "$".join(passes)


def run_lengths(bits: np.ndarray) -> Iterator[str]:
    """The characters of one pass, with repeated ones run-length encoded."""
    edges = np.flatnonzero(np.diff(bits)) + 1
    starts = np.concatenate([[0], edges])
    for start, end in zip(starts, [*edges, len(bits)], strict=True):
        count, letter = int(end - start), chr(63 + int(bits[start]))
        yield f"!{count}{letter}" if count > 3 else letter * count
