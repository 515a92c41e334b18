"""Runs a search: reads vectors, embeds queries, and writes hits or groups and their page."""

from __future__ import annotations

from pathlib import Path

from pgcli.cli.search.output import Rows, check_output, write_rows
from pgcli.cli.search.search_options import SearchOptions
from pgcli.cli.ui.console import Screen
from pgcli.errors import UsageError
from pgcli.results.gallery.page import is_page
from pgcli.results.gallery.run_info import incomplete_note
from pgcli.run.checks import check_not_a_source
from pgcli.search import faiss_index
from pgcli.search.duplicates import THRESHOLD
from pgcli.search.faiss_index import VectorIndex, indexed_duplicates, search_indexes
from pgcli.search.search_files import Hit, find_duplicates, read_all, search_files
from pgcli.search.vector_files import VectorFiles
from pgcli.stores.writing import check_target
from pgcli.tasks.question import normalize
from pgcli.wording import listed

DEFAULT_K = 10
MAX_NAMES_IN_TITLE = 3


def run_search(options: SearchOptions, screen: Screen) -> None:
    """Write the hits of each query, or the groups of near-duplicates, and their page.

    Raises UsageError, NoInputError, OutputExists, OutputFailed and what loading a model raises.
    """
    check_options(options)
    check_not_a_source(options.output, [*options.vectors, *options.image])
    check_output(options.output, options.format, overwrite=options.overwrite)
    if options.view is not None:
        check_view(options.view, options)
    paths = [Path(name) for name in options.vectors]
    files = VectorFiles(paths)
    for note in filter(None, map(incomplete_note, paths)):
        screen.info(note)
    files.head()
    if options.index:
        faiss_index.import_faiss()
    found = (group_duplicates if options.duplicates else hits_of)(files, options, screen)
    report_files(files, screen)
    summary = found.summary(files.stats.rows - files.stats.errors)
    screen.info(summary)
    write_rows(options.output, options.format, found, overwrite=options.overwrite, screen=screen)
    if options.view is not None:
        write_page(options, found, screen)


def check_options(options: SearchOptions) -> None:
    """Raise UsageError for options that exclude each other, and for queries that are empty."""
    has_queries = bool(options.text or options.image)
    if options.duplicates == has_queries:
        raise UsageError(
            "--duplicates compares the vectors with each other, not with a query"
            if has_queries
            else "nothing to search",
            hint='write --text "a red car", --image photo.jpg or --duplicates',
        )
    if options.duplicates and options.k is not None:
        raise UsageError("-k has no effect on --duplicates", hint="leave it out")
    for option, given, needed in (
        ("--raw-text", options.raw_text, bool(options.text)),
        ("--images", options.images is not None, options.view is not None),
    ):
        other = {"--raw-text": "--text", "--images": "--view"}[option]
        if given and not needed:
            raise UsageError(f"{option} has no effect without {other}", hint=f"add {other}")
    if "" in map(normalize, options.text):
        raise UsageError("a text is empty", hint='write --text "a red car"')
    if options.images is not None and not Path(options.images).is_dir():
        raise UsageError(f"{options.images} is not a folder", hint="name the folder of the images")


def check_view(view: str, options: SearchOptions) -> None:
    """Raise if the page cannot be written."""
    if view == "-":
        raise UsageError(
            "a page is not written to standard output", hint="name a file: --view page.html"
        )
    if view == options.output:
        raise UsageError(f"{view} is the file of the rows", hint="name another file with --view")
    check_not_a_source(view, [*options.vectors, *options.image], "--view")
    target = Path(view)
    is_replaced = options.overwrite or is_page(target)
    check_target(target, "--view", is_folder=False, overwrite=is_replaced)


def write_page(options: SearchOptions, found: Rows, screen: Screen) -> None:
    """Write the page of the rows, with the images that are queries above their hits."""
    from pgcli.cli.run_command import RunOnScreen
    from pgcli.results.gallery.gallery_page import GalleryOptions, RowGroup, write_gallery

    rows = list(found.page_rows(options.vectors, options.image))
    if not rows:
        screen.info(f"nothing was found: {options.view} is not written")
        return
    page = GalleryOptions(
        output=options.view,
        option="--view",
        images=options.images,
        overwrite=options.overwrite,
        allow_urls=options.allow_urls,
        allow_private_hosts=options.allow_private_hosts,
    )
    names = found.names if found.by == "query" else [Path(name).name for name in options.vectors]
    title = listed(names, MAX_NAMES_IN_TITLE)
    title = title if found.by == "query" else f"Near-duplicates in {title}"
    group = RowGroup(
        Path(options.vectors[0]), title, chosen=rows, output_of=lambda row: Path(row["vectors"])
    )
    write_gallery([group], page, RunOnScreen(screen))


def hits_of(files: VectorFiles, options: SearchOptions, screen: Screen) -> Rows:
    """The hits of each query."""
    from pgcli.cli.search.queries import embed_queries

    queries = embed_queries(files, options, screen)
    k = DEFAULT_K if options.k is None else options.k
    least = options.min_similarity
    if options.index:
        indexes = open_indexes(files, screen)
        hits = search_indexes(queries.vectors, files, indexes, k, min_similarity=least)
    else:
        with screen.progress("searching", unit="vectors") as progress:
            hits = search_files(
                queries.vectors, files, k, min_similarity=least, on_rows=progress.advance
            )
    found = settings(options) | {"queries": queries.names, "k": k, "model": queries.model}
    return Rows("query", queries.names, hits, found, has_texts=files.stats.texts > 0)


def group_duplicates(files: VectorFiles, options: SearchOptions, screen: Screen) -> Rows:
    """The groups of near-duplicates."""
    least = THRESHOLD if options.min_similarity is None else options.min_similarity
    groups = (indexed_groups if options.index else exact_groups)(files, least, screen)
    names = [str(number) for number in range(1, len(groups) + 1)]
    found = settings(options) | {"duplicates": True, "min_similarity": least, "model": files.model}
    return Rows("group", names, groups, found, has_texts=files.stats.texts > 0)


def exact_groups(files: VectorFiles, least: float, screen: Screen) -> list[list[Hit]]:
    """The groups of near-duplicates, of all pairs."""
    with screen.progress("reading", unit="vectors") as progress:
        table = read_all(files, progress.advance)
    with screen.progress("comparing", len(table.rows), unit="vectors") as progress:
        return find_duplicates(table, least, on_rows=progress.advance)


def indexed_groups(files: VectorFiles, least: float, screen: Screen) -> list[list[Hit]]:
    """The groups of near-duplicates, of the pairs that the indexes find."""
    indexes = open_indexes(files, screen)
    with screen.progress("comparing", unit="vectors") as progress:
        return indexed_duplicates(files, indexes, least, progress.advance)


def open_indexes(files: VectorFiles, screen: Screen) -> list[VectorIndex]:
    """The index of each of the files; what they have read becomes the files' statistics."""
    with screen.progress("building the index", unit="vectors") as progress:
        indexes = faiss_index.open_indexes(files, screen.info, progress.advance)
    files.stats = faiss_index.total_stats(indexes)
    return indexes


def settings(options: SearchOptions) -> dict[str, object]:
    """The settings of the search, which a Parquet file has in its metadata."""
    return {
        "command": "search",
        "vectors": list(options.vectors),
        "min_similarity": options.min_similarity,
    }


def report_files(files: VectorFiles, screen: Screen) -> None:
    """Report the rows that were left out or changed."""
    stats = files.stats
    if stats.errors:
        were = "rows have" if stats.errors > 1 else "row has"
        screen.info(f"{stats.errors:,} {were} an error in place of a vector, and are left out")
    if stats.scaled:
        vectors = "vectors were" if stats.scaled > 1 else "vector was"
        screen.info(f"{stats.scaled:,} {vectors} not normalised, and are searched as normalised")
