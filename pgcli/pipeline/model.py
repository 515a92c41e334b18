"""The model of a run: found, loaded, and compared with the one that made the saved rows."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.weight_files import total_bytes
from pgcli.pipeline.progress.run_progress import RunProgress
from pgcli.pipeline.settings import loaded_model
from pgcli.pipeline.state.record import RunRecord
from pgcli.pipeline.task import embedding_dim, find_checkpoints, load_engine, model_facts, notices
from pgcli.pipeline.workers.messages import EngineInfo
from pgcli.pipeline.workers.slots import EngineSlot, engine_slots

if TYPE_CHECKING:
    from pgcli.pipeline.request import RunRequest


def engine_info(request: RunRequest, engine: Any) -> EngineInfo:
    """What the summary and the record of a run need of its loaded engine."""
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
    """The model of a run in this process, or what is known of those in others."""

    checkpoint: Checkpoint
    adapter: Checkpoint | None = None
    engine: Any = None  # once it is loaded here

    def __init__(self, request: RunRequest, progress: RunProgress):
        self._request, self._progress = request, progress
        self.info: EngineInfo | None = None

    def find(self) -> None:
        """Find the files, after what should be known before waiting for answers.

        Raises ModelUnavailable and InvalidCheckpoint.
        """
        for text, hint in notices(self._request):
            self._progress.say(text, hint)
        # what shows downloads, where the program has one
        downloads = getattr(self._progress.show, "downloads", lambda: None)()
        self.checkpoint, self.adapter = find_checkpoints(self._request, downloads)

    def slots(self, rows: int | None) -> list[EngineSlot]:
        """Where engines compute so many rows; None for an unknown number, which one computes."""
        options = self._request.model
        is_empty = options.engines is None and not rows
        if rows is None or is_empty or self._request.question.embeds_texts:
            return [EngineSlot(1)]
        size = total_bytes(self.checkpoint.folder)
        return engine_slots(options.engines, options.device, size, rows=rows)

    def load(self, record: RunRecord | None) -> Any:
        """The loaded model; its batches are as large as an earlier run on the device learned.

        Raises OutputExists for another model than that of the record.
        """
        request, progress, state = self._request, self._progress, self._progress.state
        with progress.stage(f"loading {self.checkpoint.name}"):
            engine = load_engine(request, self.checkpoint, self.adapter, request.model.device)
        limits = None if state is None else state.owner.previous.get("limits")
        learnt = limits.get(engine.device) if isinstance(limits, dict) else None
        if isinstance(learnt, dict) and learnt:
            engine.batch_limits.load_state_dict(learnt)
        self.engine, progress.limits = engine, engine.batch_limits.summary
        self.note(engine_info(request, engine), record)
        return engine

    def note(self, info: EngineInfo, record: RunRecord | None) -> None:
        """Note what is known of a loaded model, here or in another process.

        Raises OutputExists for another model than that of the record.
        """
        if self.info is not None:
            return
        self.info = self._progress.summary.engine = info
        self._progress.summary.loading_seconds = perf_counter() - self._progress.began
        if self._request.model.device == "auto" and info.device == "cpu":
            self._warn_unused_gpu()
        if record is not None and (state := self._progress.state) is not None:
            compared = {**info.model}
            del compared["dtype_option"]  # the dtype that it means is compared
            record.check_model(compared, state.name)

    def _warn_unused_gpu(self) -> None:
        """Say why the CPU is used on a machine with a GPU, unless the user has hidden the GPU."""
        from pgcli.device.nvidia_driver import find_gpu_problem

        if (problem := find_gpu_problem()) and not problem.is_intentional:
            self._progress.say(
                f"the CPU is used, not the GPU: {problem.reason}", hint=problem.remedy
            )
