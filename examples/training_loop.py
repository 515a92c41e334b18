"""Trains LoRA adapters by a loop written from the parts of `pgcli train`, and asks the result.

    python examples/training_loop.py

It is for what the command does not cover: another loss, an unusual schedule, or data that is made
while the model learns. `pgcli.training.trainer.Trainer` adds states by which an interrupted run
ends with the same weights, evaluations, curves and several GPUs; it trains whatever is described as
a `TrainingTask`, such as `examples/demo_towers/task.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

import pgcli
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import find
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.engine.loader import read_tokenizer
from pgcli.images import ImageDecoder, ImageLimits
from pgcli.inputs import ReadOptions
from pgcli.model.siglip import normalize_pixels
from pgcli.training.answers.lora import LoraSettings, add_lora, save_adapter
from pgcli.training.answers.loss import AnswerTokens, answer_loss
from pgcli.training.answers.task import tokenized
from pgcli.training.data import RowOrder, TrainingData
from pgcli.training.optimizer import CosineSchedule, make_optimizer
from pgcli.training.rows import RowErrors, RowStore, TrainingRows
from pgcli.training.sources import RowReader

STEPS = 30
FOLDER = Path("runs")

# the rows: an image, a prompt and the answer to it; any source of the command is read
FOLDER.mkdir(exist_ok=True)
lessons = FOLDER / "lessons.jsonl"
answers = {"one.png": "two stars", "pair.png": "no star"}
with lessons.open("w") as file:
    for name, answer in answers.items():
        image = str(Path("examples/images", name).absolute())
        print(
            json.dumps({"image": image, "prefix": "how many stars?", "suffix": answer}), file=file
        )
store = RowStore(FOLDER)  # the bytes of images in tables and archives
options = ReadOptions(allow_outside_root=True)
rows = RowReader().read([str(lessons)], options, TrainingRows(store))

# the model, of which only adapters are trained
device = torch.device("cpu")
checkpoint = find("demo")
config = read_config(checkpoint.folder)
tokenizer = read_tokenizer(checkpoint.folder, config)
preprocessing = read_preprocessing(checkpoint.folder, config.vision.resolution)
model = weights.load(checkpoint.folder, config, dtype=torch.float32, device=device)
lora = LoraSettings(rank=8)
add_lora(model, lora, seed=0)  # without it: model.requires_grad_(), and save_checkpoint below
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

# the order of rows is a function of the seed and the step: a loop that begins later has the same
order = RowOrder(len(rows), batch_size=2, seed=0)
decoder = ImageDecoder(preprocessing.image_spec(config.vision.resolution), ImageLimits())
data = TrainingData(rows, [], order, store, decoder, RowErrors(), workers=0)
mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
optimizer = make_optimizer(model, weight_decay=0.0, betas=(0.9, 0.999))
schedule = CosineSchedule(STEPS, warmup=2, learning_rate=2e-3)

model.train()
for step, batch in enumerate(data.batches(0, STEPS)):
    if not batch.rows:
        continue  # none of its images can be read
    # image and prompt attend to each other, the answer is causal, and only it has a loss
    tokens = AnswerTokens.of(
        [tokenized(row, tokenizer, config.stop_tokens[0]) for row in batch.rows],
        patches=config.image_tokens,
        window=config.decoder.sliding_window,
        device=device,
    )
    pixels = normalize_pixels(batch.pixels_BRRC, mean, std, torch.float32)
    loss = answer_loss(model, model.projector(model.vision(pixels)), tokens) / len(batch.rows)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    for group in optimizer.param_groups:
        group["lr"] = schedule.at(step)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9:
        print(f"step {step + 1}: loss {loss.item():.3f}")

# an adapter in PEFT's form, for --adapter and for transformers
save_adapter(model, lora, FOLDER / "loop", base_model="demo")
store.close()
engine = pgcli.load("demo", adapter=str(FOLDER / "loop"), device="cpu", dtype="float32")
for found in engine.ask([f"examples/images/{name}" for name in answers], "how many stars?"):
    print(found.answer)
