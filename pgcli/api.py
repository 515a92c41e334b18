"""The Python API: load a model, then caption, ask, detect, segment or read images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli import tasks
from pgcli.errors import UsageError
from pgcli.images import ImageDecoder
from pgcli.pipeline import answers
from pgcli.records import Answer, DecodedImage, Item, Region, error_answer
from pgcli.remote import UrlReader, make_url_reader
from pgcli.sources import ReadOptions, open_sources
from pgcli.tasks import Question
from pgcli.workers import prefetch

if TYPE_CHECKING:
    from pgcli.engine.engine import InferenceEngine

#: A path, glob, manifest or URL as on the command line, or the bytes of an image.
Source = str | os.PathLike[str] | bytes


def load(
    model: str | os.PathLike[str] = "demo",
    *,
    revision: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    mask_decoder: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
    quantize: str = "none",
    fast_decode: bool = False,
    allow_urls: bool = False,
    allow_private_hosts: bool = False,
) -> Engine:
    """Load a checkpoint folder, a model of the Hub, or `demo`, the built-in model.

    Args:
        model: A folder, a name on the Hub, or `demo`.
        revision: A branch, tag or commit on the Hub.
        adapter: A LoRA adapter to merge into the model: a folder or a name on the Hub.
        mask_decoder: The file of weights that turn mask codes into pixels.
        device: auto, cpu, cuda, cuda:N or mps.
        dtype: auto, bfloat16 or float32.
        batch_size: Rows in one batch; by default as many as fit into memory.
        quantize: "int8" rounds the decoder to 8 bits (CPU only).
        fast_decode: Decode large JPEGs at reduced size, which changes pixels slightly.
        allow_urls: Read images at s3://, gs://, hf:// and http(s):// addresses too.
        allow_private_hosts: Allow addresses on this machine and its private network.

    Raises the errors of `pgcli.errors`, each with a `hint` that says what to do.
    """
    from pgcli.checkpoints.find import find
    from pgcli.engine.loader import load as load_engine

    loaded = load_engine(
        find(os.fspath(model), revision),
        adapter=None if adapter is None else find(os.fspath(adapter), kind="adapter"),
        masks=None if mask_decoder is None else Path(mask_decoder),
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        quantize=quantize,
    )
    return Engine(
        loaded,
        fast_decode=fast_decode,
        allow_urls=allow_urls,
        allow_private_hosts=allow_private_hosts,
    )


class Engine:
    """A loaded model. Each method yields one Answer per image and prompt, in input order.

    An image that cannot be read is an Answer with `error` set; the others are answered. `region` is
    xmin, ymin, xmax, ymax in pixels of the upright image, for models trained to answer about a part
    of an image. `workers` is the number of processes that decode images, and `progress` shows a bar
    on stderr.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        fast_decode: bool = False,
        allow_urls: bool = False,
        allow_private_hosts: bool = False,
    ):
        self._engine = engine
        self._allow_urls, self._allow_private_hosts = allow_urls, allow_private_hosts
        self._spec = replace(engine.spec, fast_decode=fast_decode)

    @property
    def label(self) -> str:
        """Name and revision of the checkpoint, as in the column `model` of the rows."""
        return self._engine.label

    def caption(
        self,
        source: Source | Iterable[Source],
        *,
        lang: str = "en",
        region: Region | None = None,
        max_new_tokens: int | None = None,
        workers: int | None = None,
        progress: bool = False,
    ) -> Iterator[Answer]:
        """One caption per image."""
        question = tasks.caption(lang, max_new_tokens=max_new_tokens)
        return self._answers(source, tasks.with_region(question, region), workers, progress)

    def ask(
        self,
        source: Source | Iterable[Source],
        prompt: str | Sequence[str] | None = None,
        *,
        choices: Sequence[str] = (),
        choices_column: str | None = None,
        region: Region | None = None,
        max_new_tokens: int | None = None,
        workers: int | None = None,
        progress: bool = False,
    ) -> Iterator[Answer]:
        """One answer per image and prompt; without a prompt, those of the manifest's column.

        With `choices`, or a manifest's column of them, the answer is the most likely choice, and
        `Answer.choices` holds the probability of each.
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        question = tasks.ask(
            prompts,
            choices=choices,
            choices_column=choices_column,
            max_new_tokens=max_new_tokens,
        )
        return self._answers(source, tasks.with_region(question, region), workers, progress)

    def detect(
        self,
        source: Source | Iterable[Source],
        objects: str | Sequence[str],
        *,
        strict: bool = False,
        region: Region | None = None,
        max_new_tokens: int | None = None,
        workers: int | None = None,
        progress: bool = False,
    ) -> Iterator[Answer]:
        """One answer per image, with `boxes` around the named objects in pixels.

        `strict` allows only complete boxes around these objects.
        """
        names = [objects] if isinstance(objects, str) else objects
        question = tasks.detect(names, strict=strict, max_new_tokens=max_new_tokens)
        return self._answers(source, tasks.with_region(question, region), workers, progress)

    def segment(
        self,
        source: Source | Iterable[Source],
        objects: str | Sequence[str],
        *,
        region: Region | None = None,
        max_new_tokens: int | None = None,
        workers: int | None = None,
        progress: bool = False,
    ) -> Iterator[Answer]:
        """One answer per image, with `boxes` around the named objects and their `masks`."""
        names = [objects] if isinstance(objects, str) else objects
        question = tasks.segment(names, max_new_tokens=max_new_tokens)
        return self._answers(source, tasks.with_region(question, region), workers, progress)

    def ocr(
        self,
        source: Source | Iterable[Source],
        *,
        region: Region | None = None,
        max_new_tokens: int | None = None,
        workers: int | None = None,
        progress: bool = False,
    ) -> Iterator[Answer]:
        """The text in each image."""
        question = tasks.ocr(max_new_tokens=max_new_tokens)
        return self._answers(source, tasks.with_region(question, region), workers, progress)

    def _answers(
        self,
        source: Source | Iterable[Source],
        question: Question,
        workers: int | None,
        progress: bool,
    ) -> Iterator[Answer]:
        engine = self._engine
        url_reader = make_url_reader(
            allow_urls=self._allow_urls, allow_private_hosts=self._allow_private_hosts
        )
        items, total = _items(source, question, url_reader)

        def refuse(image: DecodedImage, prompt: str) -> Answer:
            return error_answer(image, prompt, task=question.task, model=engine.label)

        rows: Iterator[Answer] = answers(
            tasks.with_prompts(items, question),
            partial(
                prefetch,
                decode=ImageDecoder(self._spec),
                workers=workers,
                # images of other machines are decoded in processes, however few they are
                total=None if url_reader else total,
                fetcher=url_reader,
            ),
            partial(engine.ask, question=question),
            refuse,
        )
        return _with_progress(rows, question, total) if progress else rows


def _items(
    source: Source | Iterable[Source], question: Question, url_reader: UrlReader | None = None
) -> tuple[Iterable[Item], int | None]:
    """The items of one source or several, and their number where it is known.

    Paths are opened together, as on the command line; bytes are images. An empty list yields no
    items.
    """
    sources = [source] if isinstance(source, str | os.PathLike | bytes) else list(source)
    paths = [os.fspath(source) for source in sources if not isinstance(source, bytes)]
    if len(paths) < len(sources) or not sources:
        return [_item(index, source) for index, source in enumerate(sources)], len(sources)
    options = ReadOptions(
        fields=tasks.columns(question),
        requires_prompts=question.templates is None,
        refuses_prompts=question.refuses_prompts,
        choices_column=question.choices_column,
        refuses_regions=question.region is not None,
        url_reader=url_reader,
    )
    opened = open_sources(paths, options)
    return opened, opened.total


def _with_progress(
    rows: Iterator[Answer], question: Question, images: int | None
) -> Iterator[Answer]:
    """The same rows, counted by a progress bar."""
    from tqdm.auto import tqdm

    prompts = 1 if question.templates is None else len(question.templates)
    total = None if images is None else images * prompts
    yield from tqdm(rows, total=total, unit="row")


def _item(index: int, source: Source) -> Item:
    if isinstance(source, bytes):
        return Item(index, str(index), str(index), data=source)
    path = os.fspath(source)
    if not Path(path).is_file():
        raise UsageError(
            f"{path} is not a file", hint="a list with bytes may name image files only, not folders"
        )
    return Item(index, path, path, path=path)
