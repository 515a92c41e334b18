"""The engine: a stream of pictures in, answers out as each ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.engine.batch_limits import BatchLimits
from pgcli.engine.batches import Waiting
from pgcli.engine.generate import Running
from pgcli.engine.generating import Generating
from pgcli.engine.grammar import Grammar
from pgcli.engine.image_cache import ImageFeatureCache, Reuse
from pgcli.engine.input_processor import InputProcessor
from pgcli.engine.output import Telling
from pgcli.engine.picking import Picking
from pgcli.engine.sampler import GREEDY, Sampling
from pgcli.engine.sequence import Limits
from pgcli.engine.tokenizer import Tokenizer
from pgcli.engine.trial import Trial
from pgcli.images import ImageSpec
from pgcli.model.mask_decoder import MaskDecoder
from pgcli.model.paligemma import PaliGemma
from pgcli.records import Answer, DecodedImage, unanswered
from pgcli.tasks import Question, check_max_new_tokens

USUAL_PROMPT = 16
# beyond so many a larger pass is no faster a token: processors reach their rate sooner
GROUP_TOKENS = {"cpu": 2048, "mps": 4096, "cuda": 32_768}
WINDOW_BATCHES = 4  # so many batches' requests are looked over for prompts of equal length
WINDOW_BYTES = 256 * 2**20


class Engine:
    """A loaded model with what it takes to be asked: its vocabulary and its way with pictures.

    `headroom` is what was learnt of its memory, `reuse` how often a picture was encoded for several
    prompts; both go on from one question to the next.
    """

    def __init__(
        self,
        model: PaliGemma,
        tokenizer: Tokenizer,
        preprocessing: Preprocessing,
        *,
        label: str,
        batch_size: int,
        mask_decoder: MaskDecoder | None = None,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.label = label
        self.batch_size = batch_size
        self.batch_limits = BatchLimits()
        self.reuse = Reuse()
        self.spec = ImageSpec(model.config.vision.resolution, preprocessing.resample)
        self._device = model.projector.weight.device
        self._dtype = model.projector.weight.dtype
        self._preprocessing = preprocessing
        self._mask_decoder = mask_decoder

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def dtype(self) -> str:
        return str(self._dtype).removeprefix("torch.")

    def ask(
        self,
        stream: Iterable[tuple[int, DecodedImage]],
        question: Question,
        sampling: Sampling = GREEDY,
        trial: Trial | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Answer]]:
        """The answers to each picture's prompts, with their places, in the order in which they end.

        In comes each picture with the place of its first row; its k-th prompt is answered at
        place + k. No more pictures are taken than are looked over for batches of equal length. A
        prompt too long for the model is an error row. A picture is encoded once for all its
        prompts. Where memory runs out batches shrink, and no row is lost; one for which alone there
        is none is an error row. Raises NoUsableDevice where every row is such. A `trial` is a
        measurement's, which sets lengths and is told tokens; its batches never shrink. Once
        `stopped`, the rows under way are finished and the others left unanswered.
        """
        forced = trial.lengths if trial else ()
        if forced:
            question = replace(question, max_new_tokens=max(forced))
        limits = self._limits(question, forced=bool(forced))
        admission = InputProcessor(
            self.tokenizer,
            self.model.config,
            task=question.task,
            max_new_tokens=limits.max_new_tokens,
            model=self.label,
        )
        answering = self._answering(question, limits, sampling, trial, stopped)
        group = self._group()
        if question.has_choices:  # side by side they take several times what an answer takes
            group = min(group, max(1, self.batch_size // 4))
        waiting = Waiting(size=group, window=self._window())
        for place, picture in stream:
            requests, refused = admission.admit(place, picture)
            yield from refused
            for request in requests:
                waiting.add(request)
                while waiting.ready():
                    yield from answering.answers(waiting.take())
        while waiting and not stopped():
            yield from answering.answers(waiting.take())
        yield from answering.rest()

    def _group(self) -> int:
        """How many rows are read together: enough to fill the device, so that few wait for more.

        A whole number of groups fills a batch, so that none waits for a place too few.
        """
        tokens = GROUP_TOKENS.get(self._device.type, GROUP_TOKENS["cuda"])
        slots = self.model.config.image_tokens + USUAL_PROMPT
        groups = max(1, round(self.batch_size * slots / tokens))
        return ceil(self.batch_size / groups)

    def _window(self) -> int:
        """How many requests may wait: a few batches' worth, and no more than their bytes allow."""
        fitting = WINDOW_BYTES // (3 * self.spec.resolution**2)
        return max(self.batch_size, min(WINDOW_BATCHES * self.batch_size, fitting))

    def _limits(self, question: Question, *, forced: bool) -> Limits:
        """Where answers end, whatever the model says if `forced`.

        Raises UsageError where they would leave no room for a prompt.
        """
        config = self.model.config
        check_max_new_tokens(question, config.max_answer_tokens)
        return Limits(
            max_new_tokens=question.max_new_tokens,
            stop_tokens=frozenset() if forced else frozenset(config.stop_tokens),
            vocabulary=self.tokenizer.size,
            image_token=config.image_token_id,
        )

    def _answering(
        self,
        question: Question,
        limits: Limits,
        sampling: Sampling,
        trial: Trial | None,
        stopped: Callable[[], bool],
    ) -> Generating | Picking:
        features = ImageFeatureCache(self.model, self._preprocessing, self.reuse)
        blank = partial(unanswered, task=question.task, model=self.label)
        if question.has_choices:
            return Picking(self.model, features, blank, limits, self.batch_limits)
        grammar = self._grammar(question) if question.strict else None
        running = Running(self.model, self.batch_size, limits, sampling, grammar)
        telling = Telling(self.tokenizer, self._mask_decoder)
        return Generating(running, features, blank, telling, self.batch_limits, trial, stopped)

    def _grammar(self, question: Question) -> Grammar:
        stop_tokens = self.model.config.stop_tokens
        return Grammar(self.tokenizer, question.objects, stop_tokens, device=self._device)
