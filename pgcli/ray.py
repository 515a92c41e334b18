"""Answers for `ray.data.Dataset.map_batches`. Ray itself is not imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from pgcli.api import Engine, load
from pgcli.errors import NoUsableDevice, PgcliError, UsageError
from pgcli.inputs.embedded import is_path
from pgcli.inputs.rows import is_missing
from pgcli.records import COLUMNS, EXTRA_COLUMNS, Answer, DecodedImage, Fault, Item, error_answer
from pgcli.rows import BASE_OF_TASK, RowSchema

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Answers"]

TASKS = ("caption", "ask", "detect", "segment", "ocr", "score", "classify")
#: Columns of a batch that name rows; they are not given to the model.
ID, IMAGE, PROMPT = "id", "image", "prompt"


class Answers:
    """Answers the images of a batch: a callable class for `ray.data.Dataset.map_batches`.

        images.map_batches(
            pgcli.ray.Answers,
            fn_constructor_kwargs={"task": "detect", "objects": ["cat"], "model": "demo"},
            batch_size=64, num_gpus=1, compute=ray.data.ActorPoolStrategy(size=2),
        )

    A batch has a column `image`: bytes of files, paths, structs of `bytes` and `path`, or uint8
    arrays; `id`, `prompt` and columns that prompts name are optional. The result is a table of the
    same number of rows in the same order, with the columns of a result file and those of `keep`.
    `index` is the position in the batch. `options` are those of `pgcli.load` and of the engine's
    method.

    Images that cannot be read are rows with `error`, as everywhere, and a row that fails for
    another reason has an error too. A call raises UsageError for a batch without the column `image`
    or one of `keep`, and nothing else. Making the object loads the model, and raises the errors of
    `pgcli.errors`.
    """

    def __init__(self, task: str = "caption", *, keep: Sequence[str] = (), **options: Any):
        if task not in TASKS:
            raise UsageError(f"{task!r} is not a task", hint=f"one of {', '.join(TASKS)}")
        if options.get("each") or not isinstance(options.get("prompt"), str | None):
            raise UsageError(
                "a batch has one row for each image, and several prompts make several",
                hint="give one prompt, or none and a column of prompts",
            )
        loading = {name: options.pop(name) for name in signature(load).parameters & options.keys()}
        self._options: dict[str, Any] = {"workers": 0, **options}
        self._task, self._has_prompt = task, options.get("prompt") is not None or task != "ask"
        self._engine: Engine = load(**loading)
        self._schema = RowSchema(
            base=BASE_OF_TASK.get(task, COLUMNS), extras=extra_columns(task, options)
        )
        self._keep = tuple(keep)
        for name in self._keep:
            if name in self._schema.columns:
                raise UsageError(
                    f"keep has {name!r}, which is a column of the answers",
                    hint="rename the column of the data set",
                )

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> pyarrow.Table:
        """The rows of a batch as a table, one for each image."""
        import pyarrow

        from pgcli.output.schema import rows_table

        for name in (IMAGE, *self._keep):
            if name not in batch:
                columns = ", ".join(map(repr, batch)) or "none"
                raise UsageError(
                    f"the batch has no column {name!r}, only {columns}",
                    hint="rename_columns of the data set renames columns",
                )
        count = len(batch[IMAGE])
        rows = [{name: values[number] for name, values in batch.items()} for number in range(count)]
        answers = [
            named(answer, number, row)
            for number, (answer, row) in enumerate(zip(self._answers(rows), rows, strict=True))
        ]
        table = rows_table([self._schema.row(answer) for answer in answers], self._schema)
        for name in self._keep:
            table = table.append_column(name, pyarrow.array(list(batch[name])))
        return table

    def _answers(self, rows: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """An answer for each row. If they cannot be answered together, each is answered alone."""
        left_out = {ID, PROMPT} if self._has_prompt else {ID}
        asked = [{name: row[name] for name in row if name not in left_out} for row in rows]
        try:
            stream: Iterable[Answer] = getattr(self._engine, self._task)(asked, **self._options)
            answers = list(stream) if asked else []
            if len(answers) != len(rows):
                raise UsageError(
                    f"{len(rows):,} images have {len(answers):,} answers",
                    hint="ask a question that has one answer for each image",
                )
        except Exception as problem:  # noqa: BLE001 - it is an error of the row
            if len(rows) > 1:
                return [answer for row in rows for answer in self._answers([row])]
            return [self._refused(problem)]
        return answers

    def _refused(self, problem: Exception) -> Answer:
        """The error row of what could not be answered."""
        code = "unsupported_format" if isinstance(problem, UsageError) else "worker_crashed"
        if isinstance(problem, NoUsableDevice):
            code = "oom"
        kind = "" if isinstance(problem, PgcliError) else f"{type(problem).__name__}: "
        fault = Fault(code, f"{kind}{problem}")
        task: Any = self._task
        image = DecodedImage(Item(0, "0", "0"), None, None, None, 0.0, fault)
        return error_answer(image, "", task=task, model=self._engine.label)


def named(answer: Answer, number: int, row: Mapping[str, Any]) -> Answer:
    """The answer with the position and the id of its row in the batch."""
    id_, image = answer.id, answer.image
    if image == str(answer.index):  # an image without a path is named by its position
        id_ = image = row[IMAGE] if is_path(row[IMAGE]) else str(number)
    row_id = row.get(ID)
    return replace(answer, index=number, id=id_ if is_missing(row_id) else str(row_id), image=image)


def extra_columns(task: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that the rows have on top of those that every row has."""
    present = {
        "masks": task == "segment",
        "choices": bool(options.get("choices") or options.get("choices_column")),
        "alternatives": bool(options.get("alternatives")),
        "token_logprobs": bool(options.get("token_logprobs")),
    }
    return tuple(name for name in EXTRA_COLUMNS if present[name])
