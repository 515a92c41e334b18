"""The model of a run: find it, load it, and compare it with the model of saved rows."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from pgcli.checkpoints.files import total_bytes
from pgcli.checkpoints.find import Checkpoint
from pgcli.run.progress.run_progress import RunProgress
from pgcli.run.settings import loaded_model
from pgcli.run.state.record import RunRecord
from pgcli.run.task import embedding_dim, find_checkpoints, load_engine, model_facts, notices
from pgcli.run.workers.slots import EngineSlot, engine_slots
from pgcli.run.workers.work import EngineInfo

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest


def engine_info(request: RunRequest, engine: Any) -> EngineInfo:
    """The facts about a loaded engine for the summary and the record."""
    dim = embedding_dim(request, engine)
    model = loaded_model(request, engine.label, engine.dtype, dim)
    return EngineInfo(
        engine.label,
        engine.device,
        engine.dtype,
        engine.batch_size,
        model,
        tuple(model_facts(request, engine)),
    )


class RunModel:
    """The model of a run, in this process or in engine processes."""

    checkpoint: Checkpoint
    adapter: Checkpoint | None = None
    engine: Any = None  # set once the model is loaded in this process

    def __init__(self, request: RunRequest, progress: RunProgress):
        self._request, self._progress = request, progress
        self.info: EngineInfo | None = None

    def find(self) -> None:
        """Show notices about the model, then find or download its files.

        Raises ModelUnavailable and InvalidCheckpoint.
        """
        for text, hint in notices(self._request):
            self._progress.say(text, hint)
        # the progress display may show downloads
        downloads = getattr(self._progress.show, "downloads", lambda: None)()
        self.checkpoint, self.adapter = find_checkpoints(self._request, downloads)

    def slots(self, rows: int | None) -> list[EngineSlot]:
        """The engines for so many rows; one for an unknown number (None)."""
        options = self._request.model
        is_empty = options.engines is None and not rows
        if rows is None or is_empty or self._request.question.embeds_texts:
            return [EngineSlot(1)]
        size = total_bytes(self.checkpoint.folder)
        return engine_slots(options.engines, options.device, size, rows=rows)

    def load(self, record: RunRecord | None) -> Any:
        """Load the model. Raises OutputExists if the record has another one."""
        request, progress = self._request, self._progress
        with progress.stage(f"loading {self.checkpoint.name}"):
            engine = load_engine(request, self.checkpoint, self.adapter, request.model.device)
        self.engine, progress.limits = engine, engine.batch_limits.summary
        self.note(engine_info(request, engine), record)
        return engine

    def note(self, info: EngineInfo, record: RunRecord | None) -> None:
        """Note a loaded model, of this process or another one.

        Raises OutputExists if the record has another model.
        """
        if self.info is not None:
            return
        self.info = self._progress.summary.engine = info
        self._progress.summary.loading_seconds = perf_counter() - self._progress.began
        if self._request.model.device == "auto" and info.device == "cpu":
            from pgcli.device.machine import find_gpu_problem

            if (problem := find_gpu_problem()) and not problem.is_intentional:
                reason = f"the CPU is used, not the GPU: {problem.reason}"
                self._progress.say(reason, hint=problem.remedy)
        if record is not None and (state := self._progress.state) is not None:
            compared = {**info.model}
            del compared["dtype_option"]  # the resolved dtype is compared instead
            record.check_model(compared, state.name)
