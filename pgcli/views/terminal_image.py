"""A picture as a terminal shows it amid its text: by kitty's or iTerm's protocol, or as sixels."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
from PIL import Image

Protocol = Literal["kitty", "iterm", "sixel"]
#: Terminals by what they say of themselves in the environment.
PROGRAMS: Mapping[str, Protocol] = {
    "iTerm.app": "iterm",
    "WezTerm": "iterm",
    "mintty": "iterm",
    "ghostty": "kitty",
}
TERMS: Mapping[str, Protocol] = {
    "xterm-kitty": "kitty",
    "xterm-ghostty": "kitty",
    "foot": "sixel",
    "foot-extra": "sixel",
    "mlterm": "sixel",
    "contour": "sixel",
    "yaft-256color": "sixel",
}
WIDTH, HEIGHT = 480, 320  # pixels at most
KITTY_CHUNK = 4096  # bytes of base64 that one of its escapes may carry
COLOURS = 255
START, END = "\x1b", "\x1b\\"


def protocol(environment: Mapping[str, str]) -> Protocol | None:
    """What the terminal of this environment understands; None where that is not known.

    A multiplexer between (tmux, screen) swallows pictures, whatever is behind it.
    """
    if "TMUX" in environment or environment.get("TERM", "").startswith("screen"):
        return None
    if "KITTY_WINDOW_ID" in environment:
        return "kitty"
    program = environment.get("TERM_PROGRAM") or environment.get("LC_TERMINAL") or ""
    if "iterm" in program.lower():
        return "iterm"
    return PROGRAMS.get(program) or TERMS.get(environment.get("TERM", ""))


def shown(picture: Image.Image, protocol: Protocol) -> str:
    """The escapes that show an RGB picture, made no larger than a few lines, and a newline."""
    picture = picture.copy()
    picture.thumbnail((WIDTH, HEIGHT))
    made = {"kitty": kitty, "iterm": iterm, "sixel": sixel}[protocol](picture)
    return f"{made}\n"


def png(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def kitty(picture: Image.Image) -> str:
    """Kitty's graphics protocol: a PNG in pieces, each but the last told that more come."""
    data = png(picture)
    pieces = [data[start : start + KITTY_CHUNK] for start in range(0, len(data), KITTY_CHUNK)]
    last = len(pieces) - 1
    return "".join(
        f"{START}_G{'a=T,f=100,q=2,' if not number else ''}m={int(number < last)};{piece}{END}"
        for number, piece in enumerate(pieces)
    )


def iterm(picture: Image.Image) -> str:
    """iTerm's inline images."""
    size = f"width={picture.width}px;height={picture.height}px"
    return f"{START}]1337;File=inline=1;preserveAspectRatio=1;{size}:{png(picture)}{END}"


def sixel(picture: Image.Image) -> str:
    """Sixels: bands of six rows, in each of which every colour is drawn in a pass of its own."""
    palette = picture.quantize(COLOURS)
    indices = np.asarray(palette)
    found = palette.getpalette() or []
    colours = np.asarray(found, dtype=np.int64).reshape(-1, 3) * 100 // 255
    head = "".join(f"#{n};2;{r};{g};{b}" for n, (r, g, b) in enumerate(colours))
    bands = "-".join(band(indices[top : top + 6]) for top in range(0, len(indices), 6))
    return f'{START}Pq"1;1;{picture.width};{picture.height}{head}{bands}{END}'


def band(indices: np.ndarray) -> str:
    """Up to six rows of colour numbers (rows, width)."""
    weights = 1 << np.arange(len(indices))[:, None]
    passes = []
    for colour in np.unique(indices):
        bits = ((indices == colour) * weights).sum(axis=0)
        passes.append(f"#{colour}{''.join(repeated(bits))}")
    return "$".join(passes)


def repeated(bits: np.ndarray) -> Iterator[str]:
    """The characters of a pass, runs of the same one counted."""
    edges = np.flatnonzero(np.diff(bits)) + 1
    starts = np.concatenate([[0], edges])
    for start, end in zip(starts, [*edges, len(bits)], strict=True):
        count, letter = int(end - start), chr(63 + int(bits[start]))
        yield f"!{count}{letter}" if count > 3 else letter * count
