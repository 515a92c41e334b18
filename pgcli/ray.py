"""Answers for `ray.data.Dataset.map_batches`. Ray itself is not imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pgcli.api import Engine, load
from pgcli.api.arguments import LOADING, make_call, parse_loading
from pgcli.errors import NoUsableDevice, UsageError, called_from_python
from pgcli.inputs.options import REGION
from pgcli.inputs.rows import has_region, is_missing, is_path, shown_id
from pgcli.records import Answer, DecodedImage, Fault, Item, error_answer
from pgcli.rows import RowSchema
from pgcli.tasks import AnyQuestion, template_columns

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Answers"]

TASKS = ("caption", "ask", "detect", "segment", "ocr", "score", "classify")
#: Columns of a batch that have a meaning.
INDEX, ID, IMAGE, PROMPT = "index", "id", "image", "prompt"
ALL = "*"  # of `keep`: all other columns


class Answers:
    """Answers the images of a batch: a callable class for `ray.data.Dataset.map_batches`.

        images.map_batches(
            pgcli.ray.Answers,
            fn_constructor_kwargs={"task": "detect", "object": "cat", "model": "demo"},
            batch_size=64, num_gpus=1, compute=ray.data.ActorPoolStrategy(size=2),
        )

    A batch has a column `image`: bytes of files, paths, structs of `bytes` and `path`, or uint8
    arrays. Optional columns are `id`, `index` and, for `ask`, `prompt`. The result is a table with
    one row per image, in the same order, with the columns of a result file and the `keep` columns;
    `keep="*"` passes all other columns on. Actors do not know the place of a batch in the data set:
    without a column `index`, `index` is null, and so is the `id` of an image without id and path.
    `options` are options of `pgcli.load` and of the engine's method.

    A row that fails has an `error`. A call raises UsageError only for a batch without a needed
    column, such as `image` or a `keep` column. The constructor checks all options, loads the model
    and raises the errors of `pgcli.errors`, so a wrong option never becomes an error row.
    """

    @called_from_python
    def __init__(self, task: str = "caption", *, keep: Sequence[str] = (), **options: Any):
        if task not in TASKS:
            raise UsageError(f"{task!r} is not a task", hint=f"one of {', '.join(TASKS)}")
        keeps_all = keep == ALL
        if not keeps_all and (
            isinstance(keep, str) or not all(isinstance(name, str) for name in keep)
        ):
            raise UsageError(
                f'keep must be a list of names or "{ALL}", not {keep!r}',
                hint='for example keep=["label"]',
            )
        loading = {name: options.pop(name) for name in LOADING if name in options}
        parse_loading(loading)
        call = make_call(task, {"workers": 0, **options})
        question = call.question
        if question.templates is not None and len(question.templates) > 1:
            raise UsageError(
                "several prompts would make several rows for each image",
                hint="pass one prompt, or add a column of prompts to the data set",
            )
        self._task, self._call = task, call
        self._keep = None if keeps_all else tuple(keep)  # None: all columns
        self._question, self._columns = question, columns_of(question)
        self._schema = RowSchema(base=question.columns, values=question.schema)
        for name in self._keep or ():
            if name in self._schema.columns:
                raise UsageError(
                    f"keep: {name!r} is already a column of the answers",
                    hint="rename the column of the data set",
                )
        self._engine: Engine = load(**loading)
        list(self._engine.answer(call, []))  # raises for abilities that the model lacks

    @called_from_python
    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> pyarrow.Table:
        """The rows of a batch as a table, one for each image."""
        import pyarrow

        from pgcli.output.schema import rows_table

        self._check_columns(batch)
        count = len(batch[IMAGE])
        rows = [{name: values[number] for name, values in batch.items()} for number in range(count)]
        answered = zip(self._answers(rows), rows, strict=True)
        named = [self._schema.row(answer) | names_of(answer, row) for answer, row in answered]
        table = rows_table(named, self._schema)
        others = [name for name in batch if name not in self._schema.columns]
        for name in others if self._keep is None else self._keep:
            table = table.append_column(name, pyarrow.array(list(batch[name])))
        return table

    def _check_columns(self, batch: Mapping[str, Sequence[Any]]) -> None:
        """Raise UsageError for a batch that lacks a column, or has regions beside the option."""
        for name in (IMAGE, *(self._keep or ()), *self._columns):
            if name not in batch:
                columns = ", ".join(map(repr, batch)) or "none"
                raise UsageError(
                    f"the batch has no column {name!r}, only {columns}",
                    hint="rename the column with Dataset.rename_columns",
                )
        if self._question.region is not None and any(map(has_region, batch.get(REGION, ()))):
            raise UsageError(
                "the batch has a column of regions, and region= is set too",
                hint="omit region=, or drop the column",
            )

    def _answers(self, rows: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """An answer for each row. If they cannot be answered together, each is answered alone."""
        skipped = {ID} if self._question.templates is None else {ID, PROMPT}
        skipped -= {*self._columns}
        asked = [{name: row[name] for name in row if name not in skipped} for row in rows]
        try:
            answers = list(self._engine.answer(self._call, asked)) if asked else []
            if len(answers) != len(rows):
                raise UsageError(
                    f"the engine gave {len(answers):,} answers to {len(rows):,} images",
                    hint="ask a question that has one answer for each image",
                )
        except Exception as problem:  # noqa: BLE001 - it becomes an error of the row
            if len(rows) > 1:
                return [answer for row in rows for answer in self._answers([row])]
            return [self._refused(problem)]
        return answers

    def _refused(self, problem: Exception) -> Answer:
        """The error row of an image that could not be answered."""
        fault = Fault("worker_crashed", f"{type(problem).__name__}: {problem}")
        if isinstance(problem, UsageError | NoUsableDevice):
            code = "oom" if isinstance(problem, NoUsableDevice) else "unsupported_format"
            fault = Fault(code, str(problem))
        task: Any = self._task
        image = DecodedImage(Item(0, "0", "0"), None, None, None, 0.0, fault)
        return error_answer(image, "", task=task, model=self._engine.label)


def names_of(answer: Answer, row: Mapping[str, Any]) -> dict[str, Any]:
    """The index, id and image of a row of a batch; null if the batch does not have them."""
    number, row_id, image = row.get(INDEX), row.get(ID), row[IMAGE]
    index = None if number is None or is_missing(number) else int(number)
    name: str | None = answer.image
    if name == str(answer.index):  # an image without a path is named by its place in the batch
        name = image if is_path(image) else None
    if name is None and index is not None:
        name = str(index)
    return {INDEX: index, ID: name if is_missing(row_id) else shown_id(row_id), IMAGE: name}


def columns_of(question: AnyQuestion) -> tuple[str, ...]:
    """The columns of a batch that a question needs. Raises UsageError for its own prompts."""
    names = template_columns(question)
    if PROMPT in names:
        raise UsageError(
            "the prompt uses the column 'prompt', which holds prompts itself",
            hint="rename the column of the data set",
        )
    is_own = question.templates is None and question.text_column is None
    own = (question.text_column, question.choices_column, PROMPT if is_own else None)
    return (*names, *filter(None, own))
