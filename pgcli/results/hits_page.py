"""Writes the page of a search in pages: the hits of each question, and where its words match."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pgcli.images import ImageLimits
from pgcli.output.reader import Row
from pgcli.results.gallery import (
    ThumbnailMaker,
    default_side,
    page_entries,
    report_missing,
    small_copies,
)
from pgcli.results.image_locator import ImageLocator, ImageRef, MissingImages
from pgcli.results.pages import clean_line, render_page
from pgcli.run.events import tracked
from pgcli.stores.writing import Target
from pgcli.text import count, listed
from pgcli.towers.maps import PageMaps


def write_page_hits(
    queries: Sequence[str],
    rows: Sequence[Row],
    maps: PageMaps,
    outputs: Sequence[Path],
    target: Target,
    locator: ImageLocator,
) -> None:
    """Write the page of these hits, with their maps.

    `outputs` are the files that have the rows, by the number in `path`. Raises OutputFailed.
    """
    images, missing = [ImageRef.of(row, outputs[row["path"]]) for row in rows], MissingImages()
    maker = ThumbnailMaker(default_side(len(images)), ImageLimits())
    copied = small_copies(locator.items(images), len(images), locator, maker)
    tracking = tracked(copied, locator.on_event, "images", len(images), unit="images")
    with closing(copied), closing(tracking):
        entries = [json.loads(entry) for entry in page_entries(tracking, missing)]
    hits = [
        {
            "query": row["query"],
            "rank": row["rank"],
            "id": clean_line(row["id"]),
            "score": row["similarity"],
            "image": entry,
            "maps": b64encode(of_hit).decode("ascii"),
        }
        for row, entry, of_hit in zip(rows, entries, maps.of_hits, strict=True)
    ]
    questions = [
        {
            "text": clean_line(text),
            "words": [clean_line(word.text) for word in words],
            "hits": [hit for hit in hits if hit["query"] == text],
        }
        for text, words in zip(queries, maps.words, strict=True)
    ]
    data = {"questions": questions, "grid": maps.grid}
    with target.publish() as part, part.open("w", encoding="utf-8") as file:
        file.writelines(render_page("pgcli.search", ["page"], data, title=listed(queries)))
    locator.say(f"{target.path}: {count(len(rows), 'hit')}")
    report_missing(missing, locator)
