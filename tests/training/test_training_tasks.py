"""The tasks of two towers and classifiers: micro-batches, meanings, order, and the split."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.engine import memory
from pgcli.errors import NoUsableDevice
from pgcli.model.config import ClassifierConfig, TextConfig, TwoTowersConfig, VisionConfig
from pgcli.model.siglip import ImageClassifier, SiglipAttention, TwoTowers
from pgcli.records import Item
from pgcli.towers.engine import TextFormat, TextProcessor, canonical_text
from pgcli.training.classify import ClassifyTask
from pgcli.training.contrastive import ContrastiveTask
from pgcli.training.encoders import EOS, PAD, init_towers, learn_tokenizer
from pgcli.training.processes import ALONE
from pgcli.training.rows import RowStore, TrainingRow
from pgcli.training.task import ImageBatch, MicroBatches, RowOrder, TrainingData
from pgcli.training.trainer import Trainer, TrainerOptions
from tests.support.tiny import normal, randomised

SIZES: Any = {"width": 16, "depth": 2, "mlp_dim": 24, "num_heads": 2, "dropout": 0.1}
VISION = VisionConfig(**SIZES, patch_size=8, resolution=16)
WORDS = ["a star", "a cross", "two stars", "A star!", "a circle", "a square", "nothing"]


def row(number: int, text: str, image: str | None = None) -> TrainingRow:
    return TrainingRow(Item(number, str(number), ""), text, image or str(number))


def batch(texts: list[str] = WORDS, images: list[str] | None = None) -> ImageBatch:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (len(texts), 16, 16, 3), generator=generator, dtype=torch.uint8)
    keys = images or [str(number) for number in range(len(texts))]
    return ImageBatch(pixels, [row(n, t, k) for n, (t, k) in enumerate(zip(texts, keys))])  # noqa: B905


def shared(model: nn.Module, micro_batches: MicroBatches) -> dict[str, Any]:
    """What the tasks share, without rows."""
    data: Any = TrainingData([], [], RowOrder(0, 1, 0), None, None, None)
    values = {"model": model, "data": data, "preprocessing": Preprocessing(), "save_to": print}
    types = {"device": torch.device("cpu"), "dtype": torch.float32}
    return values | types | {"micro_batches": micro_batches}


def contrastive(loss: Any, micro_batch: int | None) -> ContrastiveTask:
    tokenizer = learn_tokenizer(map(canonical_text, WORDS), max_tokens=300)
    texts = TextProcessor(tokenizer, TextFormat(8, None, EOS, PAD, canonical_text))
    text = TextConfig(**SIZES, vocab_size=tokenizer.get_vocab_size(), max_positions=8)
    model = TwoTowers(TwoTowersConfig("siglip", VISION, text, embedding_dim=16))
    init_towers(model, seed=0, scale=1.0, bias=-2.0)
    micro = MicroBatches(micro_batch, is_fixed=True)
    return ContrastiveTask(**shared(model, micro), texts=texts, loss_name=loss)


def classify(micro_batch: int | None, *, is_fixed: bool = True) -> ClassifyTask:
    vision = VisionConfig(**SIZES | {"dropout": 0.0}, patch_size=8, resolution=16)
    model = ImageClassifier(ClassifierConfig("siglip", vision, tuple(WORDS)))
    init_towers(model, seed=0)
    micro = MicroBatches(micro_batch, is_fixed=is_fixed)
    return ClassifyTask(**shared(model, micro))


@pytest.mark.parametrize(
    ("accuracy", "loss", "is_better"),
    [(0.92, 0.3, True), (0.88, 0.1, False), (0.90, 0.1, True), (0.90, 0.2, False)],
)
def test_loss_decides_between_classifiers_of_equal_accuracy(accuracy, loss, is_better):
    metrics, best = {"accuracy": accuracy, "loss": loss}, {"accuracy": 0.90, "loss": 0.2}
    assert classify(None).is_better(metrics, best) is is_better


def gradients(task: Any) -> tuple[float, list[Tensor]]:
    task.model.train()
    options = TrainerOptions(steps=1, learning_rate=1.0, seed=3)
    found = Trainer(task, options, Path("unused"), Path("unused"))._add_gradients(batch())
    return found["loss"], [one.grad for one in task.model.parameters() if one.grad is not None]


def assert_same(found: tuple[float, list[Tensor]], expected: tuple[float, list[Tensor]]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    for one, other in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_accumulated_gradients_of_a_classifier_equal_the_batch(micro_batch):
    assert_same(gradients(classify(micro_batch)), gradients(classify(None)))


@pytest.mark.parametrize("loss", ["sigmoid", "softmax"])
def test_micro_batches_of_two_towers_have_the_loss_of_the_whole_batch(loss):
    """The loss is not the mean of the losses of its parts; without dropout the gradients agree."""
    whole, parts = contrastive(loss, None), contrastive(loss, 3)
    for task in (whole, parts):
        for module in task.model.modules():
            if hasattr(module, "dropout"):
                module.dropout = 0.0
    assert_same(gradients(parts), gradients(whole))


def test_both_passes_over_a_micro_batch_have_the_same_dropout():
    """The gradient is that of the loss that is returned, by a difference quotient."""
    task = contrastive("sigmoid", 3)
    gradients(task)
    weight, at = task.model.vision.embeddings.patch_embedding.weight, (0, 0, 0, 0)
    slope = weight.grad[at].item()
    losses = []
    for shift in (1e-2, -1e-2):
        moved = contrastive("sigmoid", 3)
        moved.model.vision.embeddings.patch_embedding.weight.data[at] += shift
        losses.append(gradients(moved)[0])
    assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(slope, rel=0.05, abs=2e-3)


def test_dropout_of_towers_is_for_training_only_and_keeps_the_mean():
    settings = replace(VISION, dropout=0.0)
    for change in ({"dropout": 0.5}, {"attention_dropout": 0.5}):
        config = ClassifierConfig("siglip", replace(settings, **change), ("a", "b"))
        model = randomised(ImageClassifier(config))
        plain = randomised(ImageClassifier(replace(config, vision=settings)))
        pixels = normal(1, 3, 16, 16)
        assert torch.equal(model.eval()(pixels), plain.eval()(pixels))
        model.train()
        assert not torch.equal(model(pixels), model(pixels))
    attention = randomised(SiglipAttention(replace(settings, attention_dropout=0.5)))
    x_BPD = normal(1, 9, SIZES["width"])
    expected = attention.eval()(x_BPD)[0]
    outputs = attention.train()(x_BPD.expand(20_000, -1, -1))
    deviation = outputs.std(0) / len(outputs) ** 0.5
    assert ((outputs.mean(0) - expected).abs() < 5 * deviation + 1e-9).all()


def test_equal_texts_and_all_texts_of_an_image_are_not_negatives():
    task = contrastive("sigmoid", None)
    rows = batch(WORDS, ["x", "x", "2", "3", "4", "5", "6"]).rows
    said = task._meanings(rows)
    assert said.text_N[0] == said.text_N[3]  # but for the case and the punctuation
    assert len(set(said.text_N.tolist())) == len(WORDS) - 1
    assert set(said.image_NS[0].tolist()) == {*said.text_N[:2].tolist()}
    assert set(said.image_NS[2].tolist()) == {int(said.text_N[2]), -1}


def rows_at_most(limit: int, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the vision tower of a task run out of memory with more images."""
    forward = task.model.vision.forward

    def limited(pixels_BCRR: Tensor, *given: Any) -> Tensor:
        if len(pixels_BCRR) > limit:
            raise torch.OutOfMemoryError("no memory")
        return forward(pixels_BCRR, *given)

    monkeypatch.setattr(task.model.vision, "forward", limited)


@pytest.mark.parametrize("kind", ["classify", "probe", "contrastive"])
def test_oom_halves_the_rows_of_an_evaluation(monkeypatch, tmp_path, kind):
    monkeypatch.setattr(memory.gc, "collect", lambda: 0)
    monkeypatch.setattr(TrainingData, "in_order", lambda data, rows, *given: iter([batch()]))

    def evaluated(task: Any) -> Any:
        task.model.eval()
        with torch.no_grad():
            if kind != "probe":
                return task.evaluate()
            task.keep_features()
            return {key: float(abs(image.pixels).sum()) for key, image in task.data.kept.items()}

    def made(*, is_fixed: bool) -> Any:
        task = contrastive("sigmoid", None) if kind == "contrastive" else classify(None)
        task.micro_batches.is_fixed = is_fixed
        rows = [] if kind == "contrastive" else batch().rows
        order = RowOrder(len(WORDS), len(WORDS), 0)
        store: Any = RowStore(tmp_path)
        task.data = replace(task.data, train=rows, evaluation=rows, order=order, store=store)
        return task

    expected, task = evaluated(made(is_fixed=False)), made(is_fixed=False)
    rows_at_most(2, task, monkeypatch)
    assert evaluated(task) == pytest.approx(expected, rel=1e-5)
    assert task.micro_batches.rows == 1
    fixed = made(is_fixed=True)
    rows_at_most(2, fixed, monkeypatch)
    with pytest.raises(NoUsableDevice, match="for 7 rows at once"):
        evaluated(fixed)
    rows_at_most(0, task, monkeypatch)
    with pytest.raises(NoUsableDevice, match="for 1 row at once"):
        evaluated(task)


def test_process_without_readable_images_takes_part_in_the_update():
    task, empty = contrastive("sigmoid", None), batch([])
    image_ND, text_ND = task._encode(empty)
    assert (image_ND.shape, text_ND.shape) == ((0, 16), (0, 16))
    others = replace(ALONE, count=2)
    rows = [(row.target, row.image_key) for row in batch().rows]
    object.__setattr__(others, "gather", lambda own: [own, rows])
    said = task._meanings([], others)
    assert (said.text_N.dtype, said.image_NS.dtype) == (torch.long, torch.long)
    assert (said.text_N.shape, said.image_NS.shape) == ((0,), (0, 1))
    labels = classify(None)._labels([])
    assert labels.dtype == torch.long


def test_order_of_rows_follows_from_seed_and_step():
    order = RowOrder(rows=10, batch_size=3, seed=5)
    assert order.steps_per_epoch == 4
    steps = list(order.batches(0, 12))
    assert list(order.batches(5, 12)) == steps[5:]
    for epoch in range(3):
        batches = steps[4 * epoch : 4 * epoch + 4]
        assert [len(numbers) for numbers in batches] == [3, 3, 3, 1]
        assert sorted(number for numbers in batches for number in numbers) == [*range(10)]
    assert steps[:4] != steps[4:8]
    assert list(RowOrder(10, 3, seed=6).batches(0, 12)) != steps
    lengths = [number % 4 for number in range(10)]
    sorted_steps = list(RowOrder(10, 3, 5, lengths).batches(0, 12))
    assert list(map(set, sorted_steps)) == list(map(set, steps))
    for step in sorted_steps:
        assert [lengths[number] for number in step] == sorted(map(lengths.__getitem__, step))[::-1]
    few = RowOrder(rows=2, batch_size=3, seed=0)
    assert [sorted(step) for step in few.batches(0, 2)] == [[0, 1], [0, 1]]


def test_learned_tokenizer_ends_texts_and_falls_back_to_bytes(tmp_path):
    tokenizer = learn_tokenizer(["a red star", "a red cross", "a blue star"] * 3, max_tokens=400)
    again = learn_tokenizer(
        reversed(["a red star", "a red cross", "a blue star"] * 3), max_tokens=400
    )
    assert tokenizer.to_str() == again.to_str()
    found = tokenizer.encode("A Red STAR")
    assert found.tokens == ["▁a", "▁red", "▁star", "<eos>"]
    assert found.ids[-1] == EOS
    assert "<0xF0>" in tokenizer.encode("a 🦊").tokens
    assert tokenizer.decode(found.ids).strip() == "a red star"
