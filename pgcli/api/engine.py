"""A loaded model that answers questions about images, or compares them with texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from pgcli import tasks
from pgcli.api.embeddings import EmbeddingMethods
from pgcli.api.keywords import OF_ENGINE, names_keywords
from pgcli.api.options import Call, CallOptions, call_of, check_batch_size
from pgcli.api.sources import Source
from pgcli.box_filter import BoxFilter
from pgcli.checkpoints.model_description import read_kind
from pgcli.errors import UsageError
from pgcli.pipeline.request.applies import is_on_hub
from pgcli.records import Answer
from pgcli.tasks import Question
from pgcli.towers.abilities import check_kind

if TYPE_CHECKING:
    from pgcli.engine.engine import InferenceEngine
    from pgcli.runs import TrainingReport
    from pgcli.towers.engine import EmbeddingEngine


@names_keywords(renamed=OF_ENGINE)
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
    """Load a checkpoint folder, a model of the Hub, or `demo` or `demo-towers`, the built-in ones.

    Args:
        model: A folder, a name on the Hub, `demo` or `demo-towers`.
        revision: A branch, tag or commit on the Hub.
        adapter: A LoRA adapter to merge into the model: a folder or a name on the Hub.
        mask_decoder: The file of weights that turn mask codes into pixels; by default the model's
            own `mask_decoder.safetensors`, if its folder has one.
        device: auto, cpu, cuda, cuda:N or mps.
        dtype: auto, bfloat16, float32; or float16, for PaliGemma 1 on a GPU without bfloat16.
        batch_size: Rows in one batch; by default as many as fit into memory.
        quantize: "int8" on CPUs, "fp8" on new GPUs: rounds the decoder to 8 bits.
        fast_decode: Decode large JPEGs at reduced size, which changes pixels slightly.
        allow_urls: Read images at s3://, gs://, hf:// and http(s):// addresses too.
        allow_private_hosts: Allow addresses on this machine and its private network.

    Raises the errors of `pgcli.errors`, each with a `hint` that says what to do.
    """
    from pgcli.checkpoints.find import find

    check_batch_size(batch_size)
    name, lora = os.fspath(model), None if adapter is None else os.fspath(adapter)
    checkpoint = find(name, revision)
    found_adapter = None if lora is None else find(lora, kind="adapter")
    # the files and the device of this engine, in the words of `train`; what is automatic stays so
    origin = {
        "model": name,
        "revision": checkpoint.revision if is_on_hub(name) else None,
        "adapter": None if found_adapter is None else str(found_adapter.folder),
        "device": None if device == "auto" else device,
        "dtype": None if dtype == "auto" else dtype,
    }
    urls = {"allow_urls": allow_urls, "allow_private_hosts": allow_private_hosts}
    if read_kind(checkpoint.folder) not in ("paligemma", None):
        from pgcli.towers.loader import load as load_towers

        if adapter is not None or mask_decoder is not None or quantize != "none":
            raise UsageError(
                "adapter, mask_decoder and quantize are for models that answer with text",
                hint=f"{checkpoint.name} is none; leave them out",
            )
        towers = load_towers(checkpoint, device=device, dtype=dtype, batch_size=batch_size)
        return Engine(towers, fast_decode=fast_decode, origin=origin, **urls)
    from pgcli.engine.loader import load as load_engine

    loaded = load_engine(
        checkpoint,
        adapter=found_adapter,
        mask_decoder_file=None if mask_decoder is None else Path(mask_decoder),
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        quantize=quantize,
    )
    return Engine(loaded, fast_decode=fast_decode, origin=origin, **urls)


class Engine(EmbeddingMethods):
    """A loaded model.

    The methods that answer yield one Answer per image and prompt, in input order; `embed` returns
    an array, `search` its hits, `train` a report. PaliGemma answers with text, by `caption`, `ask`,
    `detect`, `segment` and `ocr`, and embeds images. Two towers embed images and texts, score and
    classify; classifiers classify. A method that the model does not have raises UsageError.

    A source is what the command line takes, or images in memory: bytes, Pillow's images, arrays
    and tensors; lists may mix them. An image that cannot be read is an Answer with `error` set;
    the others are answered. The five methods that answer with text take the options of
    `CallOptions` as keyword arguments.
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

    @names_keywords(renamed=OF_ENGINE)
    def caption(
        self,
        source: Source | Iterable[Source],
        *,
        lang: str = "en",
        **options: Unpack[CallOptions],
    ) -> Iterator[Answer]:
        """One caption per image."""
        call = call_of(options)
        question = tasks.caption(lang, max_new_tokens=call.answering.max_new_tokens)
        return self._answers(source, question, call)

    @names_keywords(renamed=OF_ENGINE)
    def ask(
        self,
        source: Source | Iterable[Source],
        prompt: str | Sequence[str] | None = None,
        *,
        choices: Sequence[str] = (),
        choices_column: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Iterator[Answer]:
        """One answer per image and prompt; without a prompt, those of the manifest's column.

        With `choices`, or a manifest's column of them, the answer is the most likely choice, and
        `Answer.choices` holds the probability of each.
        """
        call = call_of(options)
        question = tasks.ask(
            [prompt] if isinstance(prompt, str) else prompt,
            choices=choices,
            choices_column=choices_column,
            max_new_tokens=call.answering.max_new_tokens,
        )
        return self._answers(source, question, call)

    @names_keywords(renamed=OF_ENGINE)
    def detect(
        self,
        source: Source | Iterable[Source],
        objects: str | Sequence[str],
        *,
        strict: bool = False,
        each: bool = False,
        min_confidence: float | None = None,
        **options: Unpack[CallOptions],
    ) -> Iterator[Answer]:
        """One answer per image, with `boxes` around the named objects in pixels.

        `strict` allows only complete boxes around these objects; `each` asks for one object in each
        prompt, an answer per image and object. Boxes below `min_confidence` are dropped.
        """
        call, names = call_of(options), [objects] if isinstance(objects, str) else objects
        question = tasks.detect(
            names,
            strict=strict,
            each=each,
            box_filter=BoxFilter(min_confidence),
            max_new_tokens=call.answering.max_new_tokens,
        )
        return self._answers(source, question, call)

    @names_keywords(renamed=OF_ENGINE)
    def segment(
        self,
        source: Source | Iterable[Source],
        objects: str | Sequence[str],
        *,
        min_confidence: float | None = None,
        **options: Unpack[CallOptions],
    ) -> Iterator[Answer]:
        """One answer per image, with `boxes` around the named objects and their `masks`."""
        call, names = call_of(options), [objects] if isinstance(objects, str) else objects
        question = tasks.segment(
            names,
            box_filter=BoxFilter(min_confidence),
            max_new_tokens=call.answering.max_new_tokens,
        )
        return self._answers(source, question, call)

    @names_keywords(renamed=OF_ENGINE)
    def ocr(
        self, source: Source | Iterable[Source], **options: Unpack[CallOptions]
    ) -> Iterator[Answer]:
        """The text in each image."""
        call = call_of(options)
        return self._answers(source, tasks.ocr(max_new_tokens=call.answering.max_new_tokens), call)

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
            options: Those of the command line with `_` in place of `-`: `epochs=10`,
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

    def _answers(
        self, source: Source | Iterable[Source], question: Question, call: Call
    ) -> Iterator[Answer]:
        check_kind(question.task, self._engine.label, self._engine.kind)
        from pgcli.engine.sampler import SamplingParams  # imports torch

        engine: Any = self._engine
        options, question = call.answering, question_of_call(question, call)
        sampling = SamplingParams(options.temperature, options.top_p, options.top_k, options.seed)
        ask = partial(engine.ask, question=question, sampling=sampling, batch_size=call.batch_size)
        return self._rows(
            source, question, ask, engine, workers=call.workers, progress=call.progress
        )


def question_of_call(question: Question, call: Call) -> Question:
    """The question with what the options of a call add to it. Raises UsageError."""
    return tasks.with_region(question, call.answering.region)
