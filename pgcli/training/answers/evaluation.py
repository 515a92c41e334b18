"""Measures a model's own answers to the rows that are evaluated, by the metrics of `pgcli eval`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pgcli.engine.engine import InferenceEngine
from pgcli.engine.sampler import SamplingParams
from pgcli.engine.tokenizer import Tokenizer
from pgcli.evaluation.evaluate import measured_values
from pgcli.evaluation.join import with_boxes
from pgcli.evaluation.joined_row import JoinedRow, RowTruth
from pgcli.evaluation.metrics import metrics_of, task_of_prompt
from pgcli.parsing import has_locations
from pgcli.records import BOX_TASKS, Answer, DecodedImage, Task
from pgcli.regions import region_of, split_locations
from pgcli.tasks import MAX_NEW_TOKENS, Question
from pgcli.training.data import ImageBatch
from pgcli.training.rows import TrainingRow

#: An answer is cut at this many times the tokens of the longest true one, and some more.
LENGTH_FACTOR, LENGTH_MARGIN = 2, 8

#: An image and a prompt; rows of the same ones have several true answers.
Key = tuple[str, str]


@dataclass
class TrueAnswers:
    """The questions of rows, each once, in their order, with the true answers of each."""

    texts: dict[Key, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[TrainingRow]) -> TrueAnswers:
        """The questions of these rows."""
        questions = cls()
        for row in rows:
            questions.texts.setdefault(key_of(row), []).extend(row.answers or (row.target,))
        return questions

    @property
    def main_metric(self) -> str | None:
        """The metric that the best weights are chosen by; None if tasks have different ones."""
        main = {metrics_of(task, rows)[0] for task, rows in self._by_task({}).items()}
        return main.pop() if len(main) == 1 else None

    def ask(
        self, engine: InferenceEngine, batches: Iterable[ImageBatch]
    ) -> Iterator[tuple[Key, Answer]]:
        """The model's greedy answers to the questions of the batches, in the order they end."""
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

        tasks = {task_of(key) for key in keys}
        limits = {task: self._new_tokens(task, engine) for task in tasks}
        sampling = [SamplingParams(max_new_tokens=limits[task_of(key)]) for key in keys]
        task = tasks.pop() if len(tasks) == 1 else "ask"
        question = Question(task, None, max(limits.values()))
        for number, answer in engine.ask(images(), question, sampling):
            yield keys[number], answer

    def measure(self, answers: Mapping[Key, Answer]) -> dict[str, float]:
        """The value of each measure of the tasks; a question without an answer counts as wrong."""
        return measured_values([row for rows in self._by_task(answers).values() for row in rows])

    def _by_task(self, answers: Mapping[Key, Answer]) -> dict[Task, list[JoinedRow]]:
        """The questions with their answers and truths, by task."""
        rows: dict[Task, list[JoinedRow]] = {}
        for key, texts in self.texts.items():
            answer = answers.get(key)
            row = None if answer is None else {"answer": answer.answer}
            boxes = () if answer is None else answer.boxes
            size = {} if answer is None else {"width": answer.width, "height": answer.height}
            truth, task = with_boxes(truth_of(key, texts), size), task_of(key)
            joined = JoinedRow(key[0], key[1], row, truth, boxes, task=task)
            rows.setdefault(task, []).append(joined)
        return rows

    def _new_tokens(self, task: Task, engine: InferenceEngine) -> int:
        """The most tokens of an answer: enough for the true ones, and no more than a command's."""
        longest = max(
            answer_length(text, engine.tokenizer)
            for key, texts in self.texts.items()
            if task_of(key) == task
            for text in texts
        )
        limit = min(MAX_NEW_TOKENS[task], LENGTH_FACTOR * longest + LENGTH_MARGIN)
        return min(max(longest, limit), engine.model.config.max_answer_tokens)


def key_of(row: TrainingRow) -> Key:
    """The image and the prompt of a row."""
    return row.image_key, row.prompt


def task_of(key: Key) -> Task:
    """The task of a question, by its prompt."""
    return task_of_prompt(key[1])


def truth_of(key: Key, texts: list[str]) -> RowTruth:
    """The true answers of a question; none of them has a box where none is to be detected."""
    is_nothing = task_of(key) in BOX_TASKS and not has_locations(texts[0])
    return RowTruth(tuple(texts), boxes=() if is_nothing else None)


def answer_length(text: str, tokenizer: Tokenizer) -> int:
    """The number of tokens of an answer, the stop token among them."""
    return len(tokenizer.encode_answer(text)) + 1
