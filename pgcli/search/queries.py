"""The queries of a search: texts and images, embedded by the model of the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pgcli.checkpoints.find import builtin_models
from pgcli.errors import NoUsableDevice, UsageError
from pgcli.images import ImageDecoder
from pgcli.records import Item
from pgcli.search.nearest import Vectors, normalised

if TYPE_CHECKING:
    from pgcli.towers.engine import EmbeddingEngine


def embed_queries(
    engine: EmbeddingEngine,
    texts: Sequence[str],
    images: Sequence[str],
    width: int,
    *,
    raw_text: bool = False,
) -> Vectors:
    """The normalised vectors (Q, E) of the texts, then of the images.

    Raises UsageError for a model that embeds no queries, or vectors of another size than `width`,
    and for images that cannot be read.
    """
    if engine.kind == "classifier":
        raise UsageError(
            f"{engine.label} is an image classifier, which has no embeddings",
            hint="name two towers: SigLIP, SigLIP 2 or CLIP; PaliGemma embeds images",
        )
    vectors = embed_images(engine, images)
    if texts:
        vectors = [*engine.encode_texts(texts, raw=raw_text), *vectors]
    queries = normalised(np.stack(vectors), "query")
    if queries.shape[1] != width:
        raise UsageError(
            f"{engine.label} makes vectors with {queries.shape[1]} dimensions, those to search "
            f"have {width}",
            hint="name the model that embedded them with <--model=>",
        )
    return queries


def embed_images(engine: EmbeddingEngine, images: Sequence[str]) -> list[Vectors]:
    """The vector of each image. Raises UsageError for one that cannot be read."""
    decoder = ImageDecoder(engine.spec)
    decoded = [decoder(Item(number, name, name, name)) for number, name in enumerate(images)]
    for image in decoded:
        if image.fault is not None:
            what = f"{image.item.id}: {image.fault.message}"
            raise UsageError(what, hint="--image takes an image file")
    vectors = []
    for _, encoded in engine.encode(iter(enumerate(decoded))):
        if encoded.vector is None:
            raise NoUsableDevice(
                "the device has no memory left for even one image", hint="name another <--device=>"
            )
        vectors.append(encoded.vector)
    return vectors


def model_of_rows(label: str) -> tuple[str, str | None]:
    """The name and the revision in the column `model`; a folder and the built-in model have none
    to choose from.
    """
    name, _, revision = label.rpartition("@")
    if not name or Path(label).expanduser().is_dir():
        return label, None
    return name, None if name in builtin_models() else revision


def are_different(label: str, rows_model: str) -> bool:
    """Whether two models are certainly different: the name of a folder does not say what it has."""
    return label != rows_model and all(
        "@" in name and not Path(name).is_dir() for name in (label, rows_model)
    )
