"""search: find images similar to a text or an image, and near-duplicates."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pgcli.checkpoints.find import DEMO_TOWERS, find
from pgcli.cli.console import Screen, is_terminal
from pgcli.cli.options import (
    AddressOptions,
    CliCall,
    LoadOptions,
    QuietOptions,
    command,
)
from pgcli.cli.run_on_screen import Downloads, revision_of, warn_unused_gpu
from pgcli.declare import opt, same
from pgcli.errors import UsageError
from pgcli.output import FOLDER, PLAIN_TEXT, load_format, output_endings, output_format
from pgcli.output.lines import LineFormat
from pgcli.results.options import ImageOptions
from pgcli.run.questions import ScoreOptions
from pgcli.stores.writing import Target, wrap_write_errors
from pgcli.tasks import normalize
from pgcli.text import count, listed

if TYPE_CHECKING:
    from pgcli.results.image_locator import ImageLocator
    from pgcli.search.nearest import Block
    from pgcli.search.rows import SearchRows
    from pgcli.search.vector_files import VectorFiles
    from pgcli.towers.engine import EmbeddingEngine

DEFAULT_K = 10

_search = partial(opt, panel="What to search", own=True)
_output = partial(opt, panel="Where to", own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions(LoadOptions):
    """The options of `search`."""

    vectors: Sequence[str] = ()
    text: tuple[str, ...] = same(ScoreOptions, "text")
    image: tuple[str, ...] = _search(
        "Image to search for; repeatable.", metavar="FILE", repeat=True
    )
    duplicates: bool = _search("Find groups of near-duplicates, without a query.", default=False)
    k: int | None = _search("Number of hits per query.", short=("-k",), min=1, default_text="10")
    min_similarity: float | None = _search(
        "Lowest cosine similarity of a hit, from -1 to 1.",
        min=-1.0,
        max=1.0,
        default_text="none; --duplicates: 0.94",
    )
    raw_text: bool = same(ScoreOptions, "raw_text")
    model: str | None = opt(
        "Model that embeds the queries.",
        panel="Which model",
        own=True,
        metavar="NAME",
        default_text=f"the model that the vectors name, else {DEMO_TOWERS}",
    )
    output: str = _output(
        "Where to write: a .jsonl or .parquet file; - is standard output.",
        default="-",
        metavar="FILE",
        short=("-o",),
    )
    format: Literal["auto", "jsonl", "text"] = _output(
        "Format of the output; auto follows the file's extension, and is text on a terminal.",
        default="auto",
    )
    view: str | None = _output("Also write a page with the hits.", metavar="PAGE")
    images: str | None = same(ImageOptions, "images")
    overwrite: bool = _output("Replace existing files.", default=False)


@command(
    "search",
    "VECTORS are files and folders of embeddings from `pgcli embed`. The similarity is the cosine, "
    "of pages that ColPali embedded the score of late interaction; the search is exact.",
    SearchOptions,
    AddressOptions,
    QuietOptions,
    examples='$ pgcli search photos.parquet --text "a red star"\n'
    "$ pgcli search photos.parquet --image photo.jpg --view page.html\n"
    '$ pgcli search pages.parquet --text "revenue by region" --view page.html\n'
    "$ pgcli search photos.parquet --duplicates -o groups.jsonl",
)
def search(
    vectors: Annotated[list[str], typer.Argument(metavar="VECTORS", hidden=True)], call: CliCall
) -> None:
    from pgcli.cli.run_on_screen import RunOnScreen
    from pgcli.results.gallery import incomplete_note
    from pgcli.results.image_locator import ImageLocator
    from pgcli.search.pages import PageFiles, has_pages
    from pgcli.search.vector_files import VectorFiles

    revision = revision_of(call.values.get("model"), call.values, call.typed)
    options = call.build(SearchOptions, vectors=vectors, revision=revision)
    screen = Screen(quiet=call.quiet)
    check_search(options)
    call.report_unused(("k",) if options.duplicates else (), "on --duplicates", screen)
    call.report_unused(() if options.text else ("raw_text",), "without --text", screen)
    call.report_unused(() if options.view else ("images",), "without --view", screen)
    url_reader = call.build(AddressOptions).url_reader
    locator = ImageLocator(RunOnScreen(screen), options.images, url_reader)
    rows, page = targets(options)
    for target in filter(None, (rows, page)):
        target.check()
    paths = [Path(name) for name in vectors]
    is_pages = has_pages(paths)
    if is_pages:
        check_page_search(options)
    files = PageFiles(paths) if is_pages else VectorFiles(paths)
    for note in filter(None, map(incomplete_note, paths)):
        screen.info(note)
    _ = files.width  # of files without vectors, an error before a model is loaded
    find = find_duplicates if options.duplicates else find_page_hits if is_pages else find_hits
    results = find(files, options, screen)
    report_search(files, results, screen)
    write_rows(results, options, rows, screen)
    if page is not None:
        write_hits_page(results, options, page, locator, screen)


def check_search(options: SearchOptions) -> None:
    """Raise UsageError for options that exclude each other, and for queries that are empty."""
    has_queries = bool(options.text or options.image)
    if options.duplicates == has_queries:
        raise UsageError(
            "--duplicates compares the vectors with each other, not with a query"
            if has_queries
            else "nothing to search",
            hint='use either --text "a red car", --image photo.jpg or --duplicates',
        )
    if "" in map(normalize, options.text):
        raise UsageError("a text is empty", hint='write --text "a red car"')
    for image in options.image:
        if not Path(image).is_file():
            raise UsageError(
                f"there is no image file {image}", hint="check the spelling; --image takes a file"
            )


def check_page_search(options: SearchOptions) -> None:
    """Raise UsageError for options that do not apply to the vectors of pages."""
    refused = {
        "--image": options.image,
        "--duplicates": options.duplicates,
        "--min-similarity": options.min_similarity is not None,
    }
    if name := next((name for name, value in refused.items() if value), None):
        raise UsageError(
            f"{name} does not apply to the vectors of pages, which ColPali made",
            hint='search them with --text "revenue by region"',
        )


def targets(options: SearchOptions) -> tuple[Target | None, Target | None]:
    """The file of the rows, None for standard output, and the page. Raises UsageError."""
    from pgcli.results.pages import page_target

    inputs, overwrite, rows = [*options.vectors, *options.image], options.overwrite, None
    if options.output != "-":
        if output_format(options.output, options.format) == FOLDER:
            hint = f"name a {output_endings()} file"
            raise UsageError(f"{options.output} is the name of a folder", hint=hint)
        rows = Target(name=options.output, overwrite=overwrite, inputs=inputs)
    if options.view is None:
        return rows, None
    inputs = [*inputs, options.output]
    return rows, page_target(options.view, "--view", inputs=inputs, overwrite=overwrite)


def find_hits(files: VectorFiles, options: SearchOptions, screen: Screen) -> SearchRows:
    """The hits of each query."""
    from pgcli.search.nearest import nearest_in_blocks
    from pgcli.search.rows import SearchRows, embed_queries, hit_rows

    texts, engine = [*map(normalize, options.text)], load_for_query(files, options, screen)
    queries = embed_queries(engine, texts, options.image, files.width, raw_text=options.raw_text)
    k = DEFAULT_K if options.k is None else options.k
    blocks = watched(files, screen, "searching")
    hits = nearest_in_blocks(queries, blocks, k, options.min_similarity)
    names = [*texts, *options.image]
    settings = {
        "vectors": options.vectors,
        "queries": names,
        "k": k,
        "min_similarity": options.min_similarity,
        "model": engine.label,
    }
    truncated = engine.truncated(texts, raw=options.raw_text)
    if truncated:
        screen.info(f"truncated {count(len(truncated), 'text')} to the length of the model's input")
    return SearchRows(hit_rows(names, hits, files, truncated), settings, names)


def find_page_hits(files: VectorFiles, options: SearchOptions, screen: Screen) -> SearchRows:
    """The pages with the highest scores for each text.

    Raises UsageError if the pages were embedded with other prompts than the model's.
    """
    from pgcli.search.pages import PageFiles
    from pgcli.search.rows import SearchRows, hit_rows
    from pgcli.towers.maps import page_maps
    from pgcli.towers.pages import PageEngine

    assert isinstance(files, PageFiles)
    texts, engine = [*map(normalize, options.text)], load_for_query(files, options, screen)
    if not isinstance(engine, PageEngine) or engine.form != files.form:
        own = getattr(engine, "form", ())
        raise UsageError(
            f"the pages were embedded with the prompts {files.form}, and {engine.label} has {own}",
            hint="omit --model, or embed the pages again",
        )
    questions, k = engine.encode_questions(texts), options.k or DEFAULT_K
    with screen.progress("searching", files.rows, unit="pages") as progress:
        hits = files.hits(questions, k, progress.advance)
    settings = {"vectors": options.vectors, "queries": texts, "k": k, "model": engine.label}
    maps = None
    if options.view is not None:
        words = [*map(engine.question_words, texts)]
        maps = page_maps(words, questions, hits.rows, files.vectors, engine.grid)
    if maps is not None and files.is_pooled:
        screen.info("the page has no maps: vectors were merged with --pool")
    return SearchRows(hit_rows(texts, hits, files), settings, texts, maps)


def find_duplicates(files: VectorFiles, options: SearchOptions, screen: Screen) -> SearchRows:
    """The groups of near-duplicates."""
    import numpy as np

    from pgcli.search.nearest import THRESHOLD, duplicate_groups
    from pgcli.search.rows import SearchRows, group_rows

    least = THRESHOLD if options.min_similarity is None else options.min_similarity
    blocks = [*watched(files, screen, "reading")]
    numbers, vectors = (np.concatenate(column) for column in zip(*blocks, strict=True))
    with screen.progress("comparing", len(numbers), unit="vectors") as progress:
        groups = duplicate_groups(vectors, least, progress.advance)
    groups = [numbers[group] for group in groups]
    settings = {
        "vectors": options.vectors,
        "duplicates": True,
        "min_similarity": least,
        "model": files.model,
    }
    return SearchRows(group_rows(groups, files), settings)


def watched(files: VectorFiles, screen: Screen, task: str) -> Iterator[Block]:
    """The blocks of the files; shows the progress of reading."""
    with screen.progress(task, unit="vectors") as progress:
        for rows, vectors in files:
            yield rows, vectors
            progress.advance(len(rows))


def load_for_query(files: VectorFiles, options: SearchOptions, screen: Screen) -> EmbeddingEngine:
    """The model of the queries: the named one, or else the model of the vectors.

    Raises UsageError if the named model certainly did not make the vectors, and the errors of
    finding and loading a model.
    """
    from pgcli.search.rows import adapter_of_rows, are_different, model_of_rows

    name, revision, known = options.model, options.revision, files.model
    adapter_label = ""
    if name is None and known is not None:
        label, adapter_label = adapter_of_rows(known)
        name, revision = model_of_rows(label)
    elif name is None:
        name = DEMO_TOWERS
        screen.info(
            f"the vectors do not name their model: embedding the queries with {DEMO_TOWERS}, the "
            "built-in one, which knows only drawings of coloured shapes",
            hint="name the model that embedded the vectors: --model NAME",
        )
    checkpoint, adapter = find(name, revision, progress=Downloads(screen)), None
    label = checkpoint.label
    if adapter_label:
        adapter_name, revision = model_of_rows(adapter_label)
        adapter = find(adapter_name, revision, kind="adapter", progress=Downloads(screen))
        label += f"+{adapter.label}"
    if known is not None and are_different(label, known):
        raise UsageError(
            f"vectors of {known} cannot be compared with queries of {label}",
            hint=f"{'omit --model, or ' if options.model else ''}embed the images again",
        )
    if known not in (None, label):
        screen.info(f"the vectors were made by {known}; {label} must be the same model")
    with screen.status(f"loading {checkpoint.name}"):
        from pgcli.towers.pages import open_encoder  # imports torch, which takes a second

        device, dtype = options.device, options.dtype
        engine = open_encoder(checkpoint, adapter=adapter, device=device, dtype=dtype)
    if options.device == "auto" and engine.device == "cpu":
        warn_unused_gpu(screen)
    return engine


def report_search(files: VectorFiles, results: SearchRows, screen: Screen) -> None:
    """Report skipped and changed rows, and the number of hits."""
    if files.nulls:
        screen.info(f"skipped {count(files.nulls, 'row')} without a vector")
    if files.scaled:
        screen.info(f"normalised {count(files.scaled, 'vector')} with a norm other than 1")
    vectors = f"{files.rows - files.nulls:,} vectors"
    if results.queries:
        queries = f"{len(results.queries):,} quer{'ies' if len(results.queries) != 1 else 'y'}"
        screen.info(f"{count(len(results.rows), 'hit')} of {queries} among {vectors}")
    else:
        groups = len({row["group"] for row in results.rows})
        screen.info(
            f"{count(groups, 'group')} of near-duplicates with {len(results.rows):,} of {vectors}"
        )


def write_rows(
    results: SearchRows, options: SearchOptions, target: Target | None, screen: Screen
) -> None:
    """Write the rows; a file appears as a whole. Raises OutputExists and OutputFailed."""
    if target is None:
        on_terminal = is_terminal(sys.stdout)
        is_text = options.format == "text" or (options.format == "auto" and on_terminal)
        # some bytes control a terminal
        lines = results.text_lines() if is_text else results.json_lines(ascii_only=on_terminal)
        with wrap_write_errors("standard output"):
            sys.stdout.buffer.writelines(lines)
            sys.stdout.buffer.flush()
        return
    is_text = output_format(options.output, options.format) == PLAIN_TEXT
    format = load_format(options.output)
    with target.publish() as part:
        if not isinstance(format, LineFormat):
            results.write_table(part, format)
        else:
            lines = results.text_lines() if is_text else results.json_lines()
            part.write_bytes(b"".join(lines))
    screen.info(f"{options.output}: {count(len(results.rows), 'row')}")


def write_hits_page(
    results: SearchRows,
    options: SearchOptions,
    target: Target,
    locator: ImageLocator,
    screen: Screen,
) -> None:
    """Write the page of the rows, with the images that are queries above their hits."""
    from pgcli.results.gallery import RowGroup, write_gallery
    from pgcli.results.hits_page import write_page_hits
    from pgcli.results.options import GalleryOptions

    if not results.rows:
        screen.info(f"nothing was found: {options.view} is not written")
        return
    if results.maps is not None:
        outputs = [*map(Path, options.vectors)]
        write_page_hits(results.queries, results.rows, results.maps, outputs, target, locator)
        return
    names = results.queries or [Path(name).name for name in options.vectors]
    title = listed(names)
    group = RowGroup(
        Path(options.vectors[0]),
        title if results.queries else f"Near-duplicates in {title}",
        chosen=[*page_rows(results, options)],
        output_of=lambda row: Path(row["vectors"]),
    )
    page = GalleryOptions(output=options.view, option="--view", overwrite=options.overwrite)
    write_gallery([group], page, locator)


def page_rows(results: SearchRows, options: SearchOptions) -> Iterator[Mapping[str, Any]]:
    """The rows as a page shows them, each with its file of vectors; a query image is a row too."""
    for row in results.rows:
        known = {name: value for name, value in row.items() if name != "path"}
        known |= {"vectors": options.vectors[row["path"]]}
        if row.get("rank") == 1 and row["query"] in options.image:
            image = {"id": row["query"], "image": str(Path(row["query"]).absolute())}
            yield known | image | {"text": "the query", "similarity": 1.0, "rank": 0}
        yield known
