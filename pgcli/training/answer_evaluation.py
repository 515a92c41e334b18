"""Evaluates generated answers to the evaluation rows, with the metrics of `pgcli eval`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pgcli.boxes import region_of, split_locations
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.sampler import SamplingParams
from pgcli.evaluation.evaluate import measured_values
from pgcli.evaluation.join import Truths, joined_row, missing_rows
from pgcli.evaluation.measures import JoinedRow, metrics_of, task_of_prompt
from pgcli.labels.labelled_image import LabelledImage
from pgcli.parsing import SEPARATOR, has_locations
from pgcli.records import Answer, DecodedImage, Task
from pgcli.rows import RowSchema
from pgcli.tasks import MAX_NEW_TOKENS, Question
from pgcli.training.data import ImageBatch
from pgcli.training.rows import TrainingRow

#: Answers are truncated at this factor of the longest true answer, plus a margin, in tokens.
LENGTH_FACTOR, LENGTH_MARGIN = 2, 8
SCHEMA = RowSchema(timing=False)

#: The `image_key` and the prompt of a question; several rows give it several true answers.
Key = tuple[str, str]


@dataclass
class TrueAnswers:
    """The distinct questions of rows in order, with their texts and ground truths."""

    texts: dict[Key, list[str]] = field(default_factory=dict)
    truths: Truths = field(default_factory=lambda: Truths("the rows", has_prompts=True))

    @classmethod
    def of(cls, rows: Iterable[TrainingRow]) -> TrueAnswers:
        """The questions of the rows."""
        questions = cls()
        for row in rows:
            truth = row.truth or LabelledImage(answers=(row.target,))
            questions.texts.setdefault(key_of(row), []).extend((row.target, *truth.answers))
            questions.truths.add(key_of(row), truth)
        return questions

    @property
    def main_metric(self) -> str | None:
        """The metric that selects the best weights; None if the tasks have different ones."""
        by_task: dict[str, list[JoinedRow]] = {}
        for row in self._joined({}):
            by_task.setdefault(row.task, []).append(row)
        main = {metrics_of(task, rows)[0] for task, rows in by_task.items()}
        return main.pop() if len(main) == 1 else None

    def ask(
        self, engine: InferenceEngine, batches: Iterable[ImageBatch]
    ) -> Iterator[tuple[Key, Answer]]:
        """The model's greedy answers to the questions of the batches, in order of completion."""
        index = {key: number for number, key in enumerate(self.texts)}
        keys = [*index]

        def images() -> Iterator[tuple[int, DecodedImage]]:
            for batch in batches:
                read = zip(batch.rows, batch.pixels_BRRC.numpy(), batch.sizes, strict=True)
                for row, pixels, size in read:
                    if (number := index.pop(key_of(row), None)) is not None:
                        prompt, values = split_locations(row.prompt)
                        region = region_of(values, *size)
                        item = replace(row.item, prompts=(prompt,), choices=(), region=region)
                        yield number, DecodedImage(item, *size, pixels, 0.0)

        tasks = {task_of_prompt(prompt) for _, prompt in keys}
        limits = {task: self._new_tokens(task, engine) for task in tasks}
        lengths = [limits[task_of_prompt(prompt)] for _, prompt in keys]
        sampling = [SamplingParams(max_new_tokens=length) for length in lengths]
        task = tasks.pop() if len(tasks) == 1 else "ask"
        question = Question(task, None, max(limits.values()))
        for number, answer in engine.ask(images(), question, sampling):
            yield keys[number], answer

    def measure(self, answers: Mapping[Key, Answer]) -> dict[str, float]:
        """The values of the tasks' metrics; a question without an answer counts as wrong."""
        return measured_values(self._joined(answers))

    def _joined(self, answers: Mapping[Key, Answer]) -> list[JoinedRow]:
        """The questions with their truths and answers, like rows of `pgcli ask`."""
        rows = []
        missing = {}
        for key, truth in self.truths.by_key.items():
            if (answer := answers.get((key[0], key[1] or ""))) is None:
                missing[key] = truth
            else:
                row = SCHEMA.row(answer) | {"image": key[0], "task": "ask", "prompt": key[1]}
                rows.append(joined_row(row, key, truth))
        return [*rows, *missing_rows(missing, (), by_prompt=True)]

    def _new_tokens(self, task: Task, engine: InferenceEngine) -> int:
        """The token limit of answers: enough for the true ones, at most the command's default."""
        longest = max(
            len(engine.tokenizer.encode_answer(text)) + 1  # the stop token
            for key, texts in self.texts.items()
            if task_of_prompt(key[1]) == task
            for text in (*texts, all_boxes(texts))
        )
        limit = min(MAX_NEW_TOKENS[task], LENGTH_FACTOR * longest + LENGTH_MARGIN)
        return min(max(longest, limit), engine.model.config.max_answer_tokens)


def key_of(row: TrainingRow) -> Key:
    """The image and the prompt of a row."""
    return row.image_key, row.prompt


def all_boxes(texts: Iterable[str]) -> str:
    """An answer with the distinct boxes of all rows of a question."""
    return f" {SEPARATOR} ".join(dict.fromkeys(filter(has_locations, texts)))
