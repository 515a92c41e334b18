"""The inference engine: answers the prompts of a stream of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from pgcli.checkpoints.families import ModelKind
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.engine.grammar import Grammar
from pgcli.engine.image_cache import ImageCacheStats, ImageFeatureCache
from pgcli.engine.input_processor import InputProcessor, Sampling
from pgcli.engine.json_grammar import JsonGrammar
from pgcli.engine.memory import (
    GROUP_TOKENS,
    LARGE_PARAMETERS,
    BatchLimits,
    MemoryBudget,
    OutOfMemory,
    group_size,
    has_several_prompts,
    new_slots,
    parameters,
)
from pgcli.engine.model_runner import ModelRunner
from pgcli.engine.output import OutputProcessor, RowAnswer
from pgcli.engine.sampler import GREEDY, OutputVocabulary, SamplingParams
from pgcli.engine.scheduler import FIRST_ROWS, RequestQueue, Scheduler
from pgcli.engine.sequence import Sequence
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.mask_decoder import MaskDecoder
from pgcli.model.paligemma import PaliGemma
from pgcli.records import DecodedImage
from pgcli.tasks import Question, check_max_new_tokens

WINDOW_BATCHES = 4  # the queue holds this many batches, to find prompts of equal length
WINDOW_BYTES = 256 * 2**20


class RunnerSettings(NamedTuple):
    """The settings of a model runner: the most rows at once, and how tokens are chosen."""

    rows: int
    vocabulary: OutputVocabulary
    sampling: SamplingParams


class RunParts(NamedTuple):
    """The parts of one run of the engine."""

    inputs: InputProcessor
    scheduler: Scheduler
    runner: ModelRunner
    outputs: OutputProcessor
    on_finish: Callable[[Sequence], None]


class InferenceEngine:
    """A loaded model with its tokenizer and image preprocessing.

    `batch_limits` limit the rows at once after OOM errors; `image_stats` count hits and misses of
    the image-feature cache. Both persist from one question to the next, as do the KV cache and
    CUDA graphs if the next question has the same settings. An automatic `batch_size` is computed
    from the memory in `budget`; None keeps the given batch size. With `starts_small`, the next
    question begins with a small batch, so that its first rows come soon.
    """

    starts_small = False

    def __init__(
        self,
        model: PaliGemma,
        tokenizer: Tokenizer,
        preprocessing: Preprocessing,
        *,
        label: str,
        batch_size: int,
        budget: MemoryBudget | None = None,
        mask_decoder: MaskDecoder | None = None,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.label = label
        self.batch_limits = BatchLimits()
        self.image_stats = ImageCacheStats()
        self.spec = preprocessing.image_spec(model.config.vision.resolution)
        self._device = model.projector.weight.device
        self._dtype = model.projector.weight.dtype
        self.preprocessing = preprocessing
        self._batch_size = batch_size
        self._budget = budget
        self._mask_decoder = mask_decoder
        self._idle_runner: tuple[RunnerSettings, ModelRunner] | None = None

    @property
    def kind(self) -> ModelKind:
        return "paligemma" if self.model.config.image_marks is None else "instruct"

    @property
    def takes_system(self) -> bool:
        """Whether prompts are turns of a conversation, which a system text may open."""
        return self.tokenizer.end_of_turn is not None

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def dtype(self) -> str:
        return str(self._dtype).removeprefix("torch.")

    @property
    def is_large(self) -> bool:
        """Whether a batch may take seconds."""
        return parameters(self.model.config) > LARGE_PARAMETERS

    @property
    def batch_size(self) -> int:
        """The maximum number of rows at once; if automatic, it is computed for each question."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, rows: int) -> None:
        self._batch_size, self._budget = rows, None

    def ask(
        self,
        stream: Iterable[tuple[int, DecodedImage]],
        question: Question,
        sampling: Sampling = GREEDY,
        *,
        batch_size: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        on_finish: Callable[[Sequence], None] = lambda sequence: None,
    ) -> Iterator[RowAnswer]:
        """The answers to each image's prompts, with their row indices, in the order they finish.

        The stream yields each image with the index of its first row; its k-th prompt has the row
        index + k. The engine takes only as many images as it needs to form groups of equal prompt
        length. A prompt that is too long for the model becomes an error row. An image is encoded
        once for all its prompts. On OOM the batches shrink and their rows run again; a row that
        does not fit even alone becomes an error row, and if the first rows all do, NoUsableDevice
        is raised. Once `should_stop` returns True, running rows finish and no others start.
        `on_finish` is called with every finished sequence. `batch_size` replaces the engine's for
        this question.
        """
        params, max_new_tokens = _common_params(sampling, question)
        question = replace(question, max_new_tokens=max_new_tokens)
        check_max_new_tokens(question, self.model.config.max_answer_tokens)
        if self._budget is not None and batch_size is None:
            shares_images = has_several_prompts(question)
            self._batch_size = self._budget.batch_size(
                new_slots(question), shares_images=shares_images
            )
        rows = min(batch_size or self._batch_size, self.batch_limits.rows)
        settings = RunnerSettings(rows, self._vocabulary, params)
        grammar = self._grammar(question)
        with self._runner(settings, grammar) as runner:
            inputs = self._inputs(question, sampling, grammar)
            scheduler = self._scheduler(rows, question, should_stop)
            outputs = OutputProcessor(
                self.tokenizer, self._mask_decoder, question, model=self.label
            )
            parts = RunParts(inputs, scheduler, runner, outputs, on_finish)
            for row_index, image in stream:
                sequences, refused = inputs.process(row_index, image)
                yield from refused
                for sequence in sequences:
                    scheduler.add(sequence)
                    runner.add(sequence)
                    yield from self._run(parts)
            scheduler.close()
            yield from self._run(parts)

    def _run(self, parts: RunParts) -> Iterator[RowAnswer]:
        """Run batches until more input is needed, or until every sequence has ended."""
        scheduler, runner = parts.scheduler, parts.runner
        late: list[Sequence] = []
        while batch := scheduler.schedule():  # a group to prefill if rows are free, else decode
            try:
                runner.run(batch)
            except OutOfMemory:
                yield from self._report(parts, late)
                late = []
                runner.preempt(scheduler.on_out_of_memory(batch))
            ended = list(scheduler.pop_finished())
            # on a GPU, rows are reported once the batch after the one that ended them is launched
            now, late = (late, ended) if runner.reads_late else (ended, late)
            yield from self._report(parts, now)
        yield from self._report(parts, late)

    def _report(self, parts: RunParts, finished: list[Sequence]) -> Iterator[RowAnswer]:
        """The rows of sequences that have ended."""
        for sequence in finished:
            parts.on_finish(sequence)
        for row_index, answer in parts.outputs.answers(finished):
            self.batch_limits.count_row(is_lost=answer.error == "oom")
            yield row_index, answer

    @contextmanager
    def _runner(
        self, settings: RunnerSettings, grammar: Grammar | JsonGrammar | None
    ) -> Iterator[ModelRunner]:
        """A model runner for a question: the last one, if it has the same settings.

        Questions whose generators alternate have a runner each. After an error a runner is dropped.
        """
        idle, self._idle_runner = self._idle_runner, None
        if idle is not None and idle[0] == settings:
            runner = idle[1]
        else:
            del idle  # free its memory before more is allocated
            runner = ModelRunner(
                *(self.model, settings.vocabulary, settings.sampling),
                max_rows=settings.rows,
                images=ImageFeatureCache(self.model, self.preprocessing, self.image_stats),
            )
        runner.set_grammar(grammar)
        is_intact = False
        try:
            yield runner
            is_intact = True
        except GeneratorExit:  # the caller needs no more rows
            is_intact = True
            raise
        finally:
            if is_intact:
                runner.clear()
                self._idle_runner = settings, runner

    def _inputs(
        self, question: Question, sampling: Sampling, grammar: Grammar | JsonGrammar | None
    ) -> InputProcessor:
        starts = grammar.starts if grammar else ()
        return InputProcessor(
            *(self.tokenizer, self.model.config, sampling, question),
            model=self.label,
            starts=dict(zip(question.objects_of_prompts, starts, strict=False)),
        )

    def _scheduler(
        self, rows: int, question: Question, should_stop: Callable[[], bool]
    ) -> Scheduler:
        group = self._group_rows(question, rows)
        return Scheduler(
            RequestQueue(size=group, window=self._window(rows)),
            self.batch_limits,
            max_rows=rows,
            should_stop=should_stop,
            first_rows=self._first_rows(rows),
        )

    @property
    def _vocabulary(self) -> OutputVocabulary:
        """The tokens of answers."""
        config, tokenizer = self.model.config, self.tokenizer
        # the first ends choices; an answer in a conversation ends its turn
        stop_tokens = sorted(config.stop_tokens, key=lambda token: token != tokenizer.end_of_turn)
        return OutputVocabulary(
            tokenizer.size, config.image_token_id, tuple(stop_tokens), tokenizer.locations
        )

    def _group_rows(self, question: Question, rows: int) -> int:
        """The largest prefill group in a batch of `rows`."""
        tokens = GROUP_TOKENS[self._device.type][0]
        if self._budget is not None:
            shares_images = has_several_prompts(question)
            _, tokens = self._budget.batch(new_slots(question), shares_images=shares_images)
        group = group_size(self.model.config, rows, tokens)
        if question.has_choices:  # candidates take several times the memory of one answer
            group = min(group, max(1, rows // 4))
        return group

    def _first_rows(self, rows: int) -> int:
        """The rows of a small first batch; 0 for a normal one."""
        is_small, self.starts_small = self.starts_small and rows >= 2 * FIRST_ROWS, False
        return FIRST_ROWS if is_small else 0

    def _window(self, rows: int) -> int:
        """The most waiting sequences: a few batches, limited by the bytes of their images."""
        fitting = WINDOW_BYTES // (3 * self.spec.resolution**2)
        return max(rows, min(WINDOW_BATCHES * rows, fitting))

    def _grammar(self, question: Question) -> Grammar | JsonGrammar | None:
        """What the answers are bound to, if to anything."""
        stop_tokens = self.model.config.stop_tokens
        if question.schema is not None:
            return JsonGrammar(self.tokenizer, question.schema, stop_tokens)
        if not question.strict:
            return None
        prompts = list(question.objects_of_prompts.values())
        return Grammar(self.tokenizer, prompts, stop_tokens)


def _common_params(sampling: Sampling, question: Question) -> tuple[SamplingParams, int]:
    """The parameters common to all rows, and the maximum number of new tokens of any row."""
    rows = [sampling] if isinstance(sampling, SamplingParams) else list(sampling)
    common = {replace(row, max_new_tokens=None) for row in rows}
    if len(common) != 1:
        raise ValueError("sampling parameters of a run may differ only in max_new_tokens")
    lengths = [row.max_new_tokens or question.max_new_tokens for row in rows]
    return common.pop(), max(lengths)
