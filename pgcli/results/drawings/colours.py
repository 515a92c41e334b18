"""Colours of labels, distinguishable with colour vision deficiency."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

Colour = tuple[int, int, int]

#: Okabe and Ito's seven, Tol's indigo and wine, and a light green. Any two are distinguishable
#: with normal, protan, deutan and tritan vision. Neighbours differ most, since a label gets the
#: next colour if its own is taken.
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


class LabelColours:
    """The colour of each label, a hash of its text.

    Labels in `distinct` have different colours while any are unused, in any order.
    """

    def __init__(self, distinct: Iterable[str] = ()):
        self._assigned: dict[str, int] = {}
        conflicting = []
        for label in sorted({_normalized(label) for label in distinct}):
            if _hashed(label) in self._assigned.values():
                conflicting.append(label)
            else:
                self._assigned[label] = _hashed(label)
        for label in conflicting:
            self._assigned[label] = self._next_free(_hashed(label))

    def of(self, label: str) -> Colour:
        """The label's colour; case and surrounding whitespace are ignored."""
        normalized = _normalized(label)
        return PALETTE[self._assigned.get(normalized, _hashed(normalized))]

    def _next_free(self, index: int) -> int:
        taken = set(self._assigned.values())
        candidates = ((index + step) % len(PALETTE) for step in range(len(PALETTE)))
        return next((candidate for candidate in candidates if candidate not in taken), index)


def contrasting(colour: Colour) -> Colour:
    """Black or white, with a contrast of at least 4.5 to 1 to a colour of the palette (WCAG)."""
    red, green, blue = colour
    return BLACK if 0.3 * red + 0.6 * green + 0.1 * blue > 96 else WHITE


def _normalized(label: str) -> str:
    return label.strip().casefold()


def _hashed(label: str) -> int:
    # Python's hash of a string differs between processes
    digest = blake2b(label.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % len(PALETTE)
