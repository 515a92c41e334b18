"""A loaded model that answers questions about images, or compares them with texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from pgcli.api.call import Call, make_call, parse_loading
from pgcli.api.call_options import CallOptions
from pgcli.api.embeddings import EmbeddingMethods
from pgcli.api.sources import Source
from pgcli.checkpoints.model_description import read_kind
from pgcli.errors import UsageError, called_from_python
from pgcli.records import Answer
from pgcli.run.request.applies import is_on_hub
from pgcli.tasks import EmbeddingQuestion
from pgcli.towers.abilities import check_kind

if TYPE_CHECKING:
    from pgcli.engine.engine import InferenceEngine
    from pgcli.runs import TrainingReport
    from pgcli.towers.engine import EmbeddingEngine

READING = ("fast_decode", "allow_urls", "allow_private_hosts")


@called_from_python
def load(model: str | os.PathLike[str] = "demo", /, **options: Unpack[CallOptions]) -> Engine:
    """Load a checkpoint folder, a model of the Hub, or `demo` or `demo-towers`, the built-in ones.

    Takes the options of the command line for models and images: `revision`, `adapter`,
    `device`, `dtype`, `quantize`, `batch_size`, `mask_decoder`, `fast_decode`, `allow_urls` and
    `allow_private_hosts`.

    Raises the errors of `pgcli.errors`, each with a `hint` that says what to do.
    """
    from pgcli.checkpoints.find import find

    values = parse_loading({"model": model, **options})
    adapter, mask_decoder = values.get("adapter"), values.get("mask_decoder")
    device, dtype = values.get("device", "auto"), values.get("dtype", "auto")
    quantize, batch_size = values.get("quantize", "none"), values.get("batch_size")
    revision = values.get("revision")
    name = values["model"]
    checkpoint = find(name, revision)
    found_adapter = None if adapter is None else find(adapter, kind="adapter")
    # this engine's files and device as options of `train`; automatic values stay automatic
    origin = {
        "model": name,
        "revision": checkpoint.revision if is_on_hub(name) else None,
        "adapter": None if found_adapter is None else str(found_adapter.folder),
        "device": None if device == "auto" else device,
        "dtype": None if dtype == "auto" else dtype,
    }
    reading = {name: values.get(name, False) for name in READING}
    if read_kind(checkpoint.folder) not in ("paligemma", None):
        from pgcli.towers.loader import open_towers

        if adapter is not None or mask_decoder is not None or quantize != "none":
            raise UsageError(
                f"{checkpoint.name} does not take adapter, mask_decoder or quantize",
                hint="omit them: only models that generate text take them",
            )
        towers = open_towers(checkpoint, device=device, dtype=dtype, batch_size=batch_size)
        return Engine(towers, origin=origin, **reading)
    from pgcli.engine.loader import open_engine

    loaded = open_engine(
        checkpoint,
        adapter=found_adapter,
        mask_decoder_file=None if mask_decoder is None else Path(mask_decoder),
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        quantize=quantize,
    )
    return Engine(loaded, origin=origin, **reading)


class Engine(EmbeddingMethods):
    """A loaded model.

    The methods that answer yield one Answer per image and prompt, in input order; `embed` returns
    an array, `search` its hits, `train` a report. PaliGemma answers with text, by `caption`, `ask`,
    `detect`, `segment` and `ocr`, and embeds images. Two towers embed images and texts, score and
    classify; classifiers classify. A method that the model does not have raises UsageError.

    A source is one of the command line, or images in memory: bytes, Pillow's images, arrays
    and tensors; lists may mix them. An image that cannot be read is an Answer with `error` set;
    the others are answered. The keyword arguments of a method are the options of the command of its
    name, with `batch_size`, `workers` and `progress`; options of other commands raise UsageError.
    """

    def __init__(
        self,
        engine: InferenceEngine | EmbeddingEngine,
        *,
        fast_decode: bool = False,
        allow_urls: bool = False,
        allow_private_hosts: bool = False,
        origin: Mapping[str, str | None] | None = None,
    ):
        self._engine, self._origin = engine, origin
        self._allow_urls, self._allow_private_hosts = allow_urls, allow_private_hosts
        self._fast_decode = fast_decode

    @property
    def label(self) -> str:
        """Name and revision of the checkpoint, as in the column `model` of the rows."""
        return self._engine.label

    def __repr__(self) -> str:
        engine = self._engine
        return (
            f"<Engine {engine.label}: {engine.device}, {engine.dtype}, "
            f"batches of up to {engine.batch_size:,}>"
        )

    @called_from_python
    def caption(
        self, source: Source | Iterable[Source], /, **options: Unpack[CallOptions]
    ) -> Iterator[Answer]:
        """One caption per image."""
        return self.answer(make_call("caption", options), source)

    @called_from_python
    def ask(
        self,
        source: Source | Iterable[Source],
        prompt: str | Sequence[str] | None = None,
        /,
        **options: Unpack[CallOptions],
    ) -> Iterator[Answer]:
        """One answer per image and prompt; without a prompt, the manifest's prompts.

        With `choice`, or a manifest's column of choices, the answer is the most likely choice, and
        `Answer.choices` holds the probability of each.
        """
        return self.answer(make_call("ask", {"prompt": prompt, **options}), source)

    @called_from_python
    def detect(
        self,
        source: Source | Iterable[Source],
        object: str | Sequence[str] | None = None,
        /,
        **options: Unpack[CallOptions],
    ) -> Iterator[Answer]:
        """One answer per image, with `boxes` around the named objects in pixels.

        `strict` allows only complete boxes around these objects; `each` asks for one object in each
        prompt, an answer per image and object. Boxes below `min_confidence` are dropped.
        """
        return self.answer(make_call("detect", {"object": object, **options}), source)

    @called_from_python
    def segment(
        self,
        source: Source | Iterable[Source],
        object: str | Sequence[str] | None = None,
        /,
        **options: Unpack[CallOptions],
    ) -> Iterator[Answer]:
        """One answer per image, with `boxes` around the named objects and their `masks`."""
        return self.answer(make_call("segment", {"object": object, **options}), source)

    @called_from_python
    def ocr(
        self, source: Source | Iterable[Source], /, **options: Unpack[CallOptions]
    ) -> Iterator[Answer]:
        """The text in each image."""
        return self.answer(make_call("ocr", options), source)

    def train(
        self,
        rows: str | os.PathLike[str] | Iterable[str | os.PathLike[str] | Mapping[str, Any]],
        *,
        output: str | os.PathLike[str],
        progress: bool = False,
        **options: Any,
    ) -> TrainingReport:
        """Train the engine's model, as `pgcli train ROWS -o OUTPUT` does; this engine stays as it
        is. The same call again resumes the run.

        It begins with the files that the engine was loaded from, of the same commit of the Hub, and
        with the engine's adapter, on its device and in its dtype: the loaded weights themselves are
        packed for inference, which cannot be trained.

        Args:
            rows: Manifests, result files, folders or archives; or dicts with an `image`, which may
                be in memory, a `prefix` and a `suffix`, or whatever columns the task reads.
            output: The folder of the adapter or model, its metrics and curves.
            progress: Show progress, evaluations and the summary on stderr.
            options: The options of the command line with `_` in place of `-`: `epochs=10`,
                `eval_fraction=0.05`, `task="classify"`. `eval` may be dicts too.

        Returns the report of the run; `report.load()` is an engine with the trained weights.
        Raises the errors of `pgcli.errors`, each with a `hint` that says what to do.
        """
        from pgcli import train

        if self._origin is None:
            raise UsageError(
                "the engine's model is not from a checkpoint",
                hint="train an engine that pgcli.load returns",
            )
        own = {
            **self._origin,
            "allow_outside_root": True,
            "allow_urls": self._allow_urls,
            "allow_private_hosts": self._allow_private_hosts,
            "fast_decode": self._fast_decode,
        }
        return train(rows, output=output, progress=progress, **own | options)

    def answer(self, call: Call, source: Any) -> Iterator[Answer]:
        """The answers of a call that `make_call` made."""
        question, engine = call.question, cast(Any, self._engine)
        if isinstance(question, EmbeddingQuestion):
            return self._vector_rows(call, source)
        check_kind(question.task, engine.label, engine.kind)
        from pgcli.engine.sampler import SamplingParams  # imports torch

        options = call.answering
        sampling = SamplingParams(options.temperature, options.top_p, options.top_k, options.seed)
        batch_size = call.engine.batch_size
        ask = partial(engine.ask, question=question, sampling=sampling, batch_size=batch_size)
        return self._rows(call, source, ask, engine)
