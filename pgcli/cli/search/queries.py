"""The queries of a search: texts and images, embedded by the model of the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pgcli.checkpoints.find import DEMO_TOWERS, Checkpoint, builtin_models
from pgcli.cli.find_model import find_model, warn_unused_gpu
from pgcli.cli.ui.console import Screen
from pgcli.errors import NoUsableDevice, UsageError
from pgcli.images import ImageDecoder
from pgcli.records import DecodedImage, Item
from pgcli.search.nearest import Vectors, normalised
from pgcli.search.vector_files import VectorFiles
from pgcli.tasks.question import normalize

if TYPE_CHECKING:
    from pgcli.cli.search.search_options import SearchOptions
    from pgcli.embedding.engine import EmbeddingEngine


class Queries(NamedTuple):
    """The texts and the names of the images, their vectors (Q, E), and the model of these."""

    names: list[str]
    vectors: Vectors
    model: str


def embed_queries(files: VectorFiles, options: SearchOptions, screen: Screen) -> Queries:
    """The vectors of the texts, then of the images.

    Raises UsageError for images that cannot be read and for another model than the vectors', and
    what finding and loading a model raises.
    """
    check_images(options.image)
    checkpoint = find_checkpoint(files.model, options, screen)
    check_model(checkpoint.label, files.model, screen, is_named=options.model is not None)
    with screen.status(f"loading {checkpoint.name}"):
        from pgcli.embedding.loader import load  # imports torch, which takes a second

        engine = load(checkpoint, device=options.device, dtype=options.dtype)
    if options.device == "auto" and engine.device == "cpu":
        warn_unused_gpu(screen)
    if engine.kind == "classifier":
        raise UsageError(
            f"{engine.label} is an image classifier, which has no embeddings",
            hint="name two towers: SigLIP, SigLIP 2 or CLIP; PaliGemma embeds images",
        )
    texts = list(map(normalize, options.text))
    vectors = [*embed_images(engine, options.image)]
    if texts:
        vectors = [*engine.encode_texts(texts, raw=options.raw_text), *vectors]
    found = normalised(np.stack(vectors), "query")
    width = files.head().vectors.shape[1]
    if found.shape[1] != width:
        raise UsageError(
            f"{engine.label} makes vectors of {found.shape[1]} numbers, and those to search have "
            f"{width}",
            hint="name the model that embedded them with --model",
        )
    return Queries([*texts, *options.image], found, engine.label)


def find_checkpoint(rows_model: str | None, options: SearchOptions, screen: Screen) -> Checkpoint:
    """The files of the named model, or else of the one that the vectors name."""
    if options.model is not None:
        return find_model(options.model, options.revision, screen)
    if rows_model is None:
        screen.info(
            f"the vectors name no model: the queries are embedded by {DEMO_TOWERS}, the built-in "
            "one, which knows only drawings of coloured shapes",
            hint="--model names the model that embedded the vectors",
        )
        return find_model(DEMO_TOWERS, None, screen)
    name, revision = split_label(rows_model)
    return find_model(name, revision, screen)


def split_label(label: str) -> tuple[str, str | None]:
    """The name and the revision in the column `model`; a folder and the built-in model have none
    to choose from.
    """
    name, _, revision = label.rpartition("@")
    if not name or Path(label).expanduser().is_dir():
        return label, None
    return name, None if name in builtin_models() else revision


def check_model(label: str, rows_model: str | None, screen: Screen, *, is_named: bool) -> None:
    """Raise UsageError where the vectors are certainly of another model than the queries.

    The name of a folder does not say what is in it: another one is only reported.
    """
    if rows_model in (None, label):
        return
    assert rows_model is not None
    if all("@" in one and not Path(one).is_dir() for one in (label, rows_model)):
        raise UsageError(
            f"the vectors are of {rows_model}, and {label} would embed the queries: they cannot "
            "be compared",
            hint=f"{'leave out --model, or ' if is_named else ''}embed the images again",
        )
    screen.info(f"the vectors are of {rows_model}; {label} has to be the same model")


def check_images(images: Sequence[str]) -> None:
    """Raise UsageError for a query that is not a file, before a model is loaded."""
    for image in images:
        if not Path(image).is_file():
            raise UsageError(f"{image} is not an image file", hint="--image takes a file")


def embed_images(engine: EmbeddingEngine, images: Sequence[str]) -> list[Vectors]:
    """The vector of each image. Raises UsageError for one that cannot be read."""
    decoder, decoded = ImageDecoder(engine.spec), list[tuple[int, DecodedImage]]()
    for number, name in enumerate(images):
        image = decoder(Item(number, name, name, name))
        if image.fault is not None:
            raise UsageError(f"{name}: {image.fault.message}", hint="--image takes an image file")
        decoded.append((number, image))
    vectors = []
    for _, encoded in engine.encode(iter(decoded)):
        if encoded.vector is None:
            raise NoUsableDevice(
                "the device has no memory left for even one image", hint="name another --device"
            )
        vectors.append(encoded.vector)
    return vectors
