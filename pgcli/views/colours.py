"""One colour a label, told apart also by eyes that see fewer colours."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

Colour = tuple[int, int, int]

#: Okabe and Ito's seven, with Tol's indigo and wine and a light green. Any two differ for normal,
#: protan, deutan and tritan eyes; the order has the greatest differences between neighbours, which
#: is where labels go that want the same colour.
PALETTE: tuple[Colour, ...] = (
    (230, 159, 0),
    (0, 158, 115),
    (51, 34, 136),
    (204, 121, 167),
    (169, 255, 140),
    (136, 34, 85),
    (240, 228, 66),
    (86, 180, 233),
    (213, 94, 0),
    (0, 114, 178),
)
BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)


class Colours:
    """The colour of each label: its text alone decides, except that `asked` labels never share one
    as long as there are colours left. The order in which they were asked for changes nothing.
    """

    def __init__(self, asked: Iterable[str] = ()):
        self._settled: dict[str, int] = {}
        late = []
        for label in sorted({_plain(label) for label in asked}):
            if _wish(label) in self._settled.values():
                late.append(label)
            else:
                self._settled[label] = _wish(label)
        for label in late:
            self._settled[label] = self._nearest_free(_wish(label))

    def of(self, label: str) -> Colour:
        """The label's colour; capitals and outer blanks change nothing."""
        plain = _plain(label)
        return PALETTE[self._settled.get(plain, _wish(plain))]

    def _nearest_free(self, wish: int) -> int:
        taken = set(self._settled.values())
        around = ((wish + step) % len(PALETTE) for step in range(len(PALETTE)))
        return next((place for place in around if place not in taken), wish)


def readable_on(colour: Colour) -> Colour:
    """Black or white, whichever stands out more: at least 4.5 to 1 on any colour (WCAG)."""
    light = luminance(colour)
    return BLACK if (light + 0.05) ** 2 > 1.05 * 0.05 else WHITE


def luminance(colour: Colour) -> float:
    """The relative luminance of an sRGB colour, 0 for black and 1 for white."""
    red, green, blue = (_linear(value / 255) for value in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)


def _plain(label: str) -> str:
    return label.strip().casefold()


def _wish(plain: str) -> int:
    # Python's own hash differs from run to run
    digest = blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % len(PALETTE)
