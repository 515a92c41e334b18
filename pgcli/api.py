"""The Python face: load an engine, then ask of pictures, by name or bytes, as commands do."""

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
    from pgcli.engine.engine import Engine as Loaded

#: What can be asked about: a path, glob or manifest as on the command line, a picture's bytes, or
#: many of these.
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
    """An engine for a checkpoint folder, a Hub name, or `demo`, the built-in model.

    `adapter` is a LoRA to merge into it, by folder or Hub name; `mask_decoder` the file that
    turns mask codes into pixels; `quantize` may be "int8", which on a processor rounds the decoder
    to eight bits; `fast_decode` decodes large JPEGs small, which is several times as fast and
    changes pixels slightly; `allow_urls` reads pictures from addresses too, with
    `allow_private_hosts` also from one's own network. Raises the errors of `pgcli.errors`, each
    with a `hint` that says what to do.
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
    """A loaded model. Each method yields one Answer per picture and prompt, in input order.

    A picture that cannot be read is an Answer with `error` set; the others are answered.
    `region` is xmin, ymin, xmax, ymax in pixels of the upright pictures, told to models trained to
    answer about a part. `workers` is how many processes decode pictures, `progress` shows a bar on
    stderr.
    """

    def __init__(
        self,
        engine: Loaded,
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
        """Name and revision of the checkpoint, as the rows' `model` says it."""
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
        """One caption per picture."""
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
        """One answer per picture and prompt; without a prompt the manifest's column is asked.

        With `choices`, or a manifest's column of them, the answer is the likeliest, and each one's
        probability in `Answer.choices`.
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
        """One row per picture, with `boxes` around the named objects in pixels.

        `strict` allows no answer but whole boxes around these objects.
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
        """One row per picture, with `boxes` around the named objects and the `masks` within."""
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
        """The text that stands in each picture."""
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

        def refuse(picture: DecodedImage, prompt: str) -> Answer:
            return error_answer(picture, prompt, task=question.task, model=engine.label)

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
        return _shown(rows, question, total) if progress else rows


def _items(
    source: Source | Iterable[Source], question: Question, url_reader: UrlReader | None = None
) -> tuple[Iterable[Item], int | None]:
    """The items of one source or many, and how many there are where that is known.

    Paths are opened together, as the command line would; bytes stand for themselves. Of nothing
    there is nothing, as from any other function that is given an empty list.
    """
    given = [source] if isinstance(source, str | os.PathLike | bytes) else list(source)
    if not given or any(isinstance(one, bytes) for one in given):
        return [_item(number, one) for number, one in enumerate(given)], len(given)
    reading = ReadOptions(
        fields=tasks.columns(question),
        requires_prompts=question.templates is None,
        refuses_prompts=question.refuses_prompts,
        choices_column=question.choices_column,
        refuses_regions=question.region is not None,
        url_reader=url_reader,
    )
    found = open_sources([os.fspath(one) for one in given if not isinstance(one, bytes)], reading)
    return found, found.total


def _shown(rows: Iterator[Answer], question: Question, pictures: int | None) -> Iterator[Answer]:
    """The same rows, with a bar that counts them."""
    from tqdm.auto import tqdm

    prompts = 1 if question.templates is None else len(question.templates)
    total = None if pictures is None else pictures * prompts
    yield from tqdm(rows, total=total, unit="row")


def _item(number: int, given: Source) -> Item:
    if isinstance(given, bytes):
        return Item(number, str(number), str(number), data=given)
    path = os.fspath(given)
    if not Path(path).is_file():
        raise UsageError(
            f"{path} is no file", hint="among bytes only picture files can be named, not folders"
        )
    return Item(number, path, path, path=path)
