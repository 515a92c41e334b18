"""The page of a search: each query above its hits, or groups of near-duplicates side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from string import Template

from pgcli.printable import encodable, printable
from pgcli.results.gallery.page import asset, policy
from pgcli.results.gallery.thumbnails import ThumbnailEntry


@dataclass(frozen=True)
class FoundCard:
    """An image that was found, or a text: its number among the images or its words."""

    id: str
    similarity: float
    image: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Section:
    """A query or a group with its cards; `image` is the number of the image that is the query."""

    title: str
    cards: Sequence[FoundCard]
    note: str = ""
    image: int | None = None


def render_search_page(
    sections: Iterable[Section], images: Sequence[ThumbnailEntry], *, title: str, summary: str
) -> Iterator[str]:
    """The page in pieces. It has no script, and no foreign value in it is markup."""
    style = asset("page.css") + asset("search.css")
    yield Template(asset("search.html")).substitute(
        policy=escape(policy(style, "", has_assets=False)),
        title=text(title),
        summary=text(summary),
        style=style,
    )
    is_empty = True
    for section in sections:
        is_empty = False
        yield from section_parts(section, images)
    if is_empty:
        yield '<p class="nothing">Nothing was found.</p>\n'
    yield "</main>\n</body>\n</html>\n"


def section_parts(section: Section, images: Sequence[ThumbnailEntry]) -> Iterator[str]:
    """The markup of a section."""
    query = "" if section.image is None else thumbnail(images[section.image], section.title)
    yield (
        f'<section class="result"><header>{query}<h2>{text(section.title)}</h2>'
        f"<p>{text(section.note)}</p></header>\n"
    )
    yield '<ol class="hits">\n' if section.cards else '<p class="nothing">Nothing was found.</p>\n'
    for card in section.cards:
        yield card_markup(card, images)
    yield "</ol></section>\n" if section.cards else "</section>\n"


def card_markup(card: FoundCard, images: Sequence[ThumbnailEntry]) -> str:
    """The markup of a card: the image or the text, its similarity as a bar, and its id."""
    if card.image is None:
        shown = f'<div class="words">{text(card.text)}</div>'
    else:
        shown = f'<div class="frame">{thumbnail(images[card.image], card.id)}</div>'
    share, id = f"{100 * min(1.0, max(0.0, card.similarity)):.1f}", text(card.id)
    return (
        f'<li class="hit">{shown}<svg class="share" viewBox="0 0 100 3" preserveAspectRatio="none"'
        f' aria-hidden="true"><rect class="shell" width="100" height="3"/><rect class="filled"'
        f' width="{share}" height="3"/></svg><p class="foot">'
        f'<span class="value">{card.similarity:.3f}</span>'
        f'<span class="id" title="{id}">{id}</span></p></li>\n'
    )


def thumbnail(entry: ThumbnailEntry, name: str) -> str:
    """The thumbnail, or why there is none."""
    if isinstance(entry[0], str):
        size = f'width="{entry[1]}" height="{entry[2]}"'
        return f'<img src="data:image/webp;base64,{entry[0]}" {size} alt="{text(name)}">'
    code, message = entry[3:] if len(entry) == 5 else ("", "")
    return f'<div class="blank"><code>{text(code)}</code><span>{text(message)}</span></div>'


def text(value: str) -> str:
    """The value as text of the page on one line, with control characters escaped."""
    return escape(printable(encodable(value)))
