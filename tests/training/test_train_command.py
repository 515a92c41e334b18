"""`pgcli train` through the command line: what it writes, how it resumes, and what it refuses."""

import json
import math
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from pgcli.checkpoints.find import BUILTIN_TOWERS, DEMO, Checkpoint
from pgcli.cli.commands.learning import use_of
from pgcli.cli.main import main
from pgcli.run.state.record import differences
from pgcli.towers.engine import open_towers
from pgcli.training.options import TrainOptions
from pgcli.training.processes import ALONE
from pgcli.training.run import fixed_settings
from tests.support.misbehaving import Server
from tests.support.towers import load_from
from tests.support.training import metrics, stop_after, write_folders, write_pairs

TINY = "--init tiny --workers 0 --device cpu --dtype float32"
CONTRASTIVE = f"--task contrastive {TINY} --steps 4 --batch-size 6 --warmup 0"
CLASSIFY = f"--task classify {TINY} --steps 4 --batch-size 6 --warmup 0"

Run = Callable[[str], int]


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    """Runs `pgcli train` in a folder with a manifest `pairs.jsonl` and a folder `walls`."""
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path)
    write_folders(tmp_path / "walls")
    return lambda words: main(["train", *words.split()])


def weights(folder: str) -> dict[str, Tensor]:
    return load_file(Path(folder, "model.safetensors"))


def same(one: str, other: str) -> bool:
    """Whether two folders have the same weights, bit by bit."""
    return (
        Path(one, "model.safetensors").read_bytes() == Path(other, "model.safetensors").read_bytes()
    )


def test_towers_learn_and_transformers_loads_them(run):
    options = CONTRASTIVE.replace("--steps 4", "--steps 8")
    assert run(f"pairs.jsonl {options} --eval-fraction 0.25 --eval-every 4 -o out") == 0
    before, *lines = metrics("out")
    assert [line["step"] for line in (before, *lines)] == [*range(9)]
    assert {"eval_loss", "eval_image_to_text", "eval_text_to_image"} <= before.keys()
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    keys = {"learning_rate", "gradient_norm", "rows_per_second", "rows", "memory_mb"}
    assert keys <= lines[0].keys()
    assert {"eval_loss", "eval_image_to_text", "eval_text_to_image"} <= lines[3].keys()
    model = load_from(Path("out"))
    reference, info = transformers.SiglipModel.from_pretrained("out", output_loading_info=True)
    assert not any(info.values()), info
    processor = transformers.AutoProcessor.from_pretrained("out", backend="pil")
    images = [transformers.image_utils.load_image(f"images/{n:02}.png") for n in range(3)]
    inputs = processor(
        text=["A red, wall!", "a green wall"],
        images=images,
        padding="max_length",
        max_length=32,
        return_tensors="pt",
    )
    engine = open_towers(Checkpoint("out", Path("out")), dtype="float32", device="cpu")
    ours = torch.from_numpy(engine.encode_texts(["A red wall!", "a green wall"]))
    with torch.inference_mode():
        found = reference.eval()(input_ids=inputs.input_ids, pixel_values=inputs.pixel_values)
        image_ND = model.encode_images(inputs.pixel_values)
        logits = model.logits(image_ND @ ours.T)
    torch.testing.assert_close(found.text_embeds, ours, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.image_embeds, image_ND, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.logits_per_image, logits, atol=1e-4, rtol=0)
    record = json.loads(Path("out", "run.json").read_text())
    assert record["result"]["complete"]
    assert Path("out", "curves.png").stat().st_size > 1000


def test_images_at_addresses_are_read_in_every_pass(run):
    with Server(b"") as server:
        server.files = {f"/{file}": file.read_bytes() for file in Path("images").iterdir()}
        rows = map(json.loads, Path("pairs.jsonl").read_text().splitlines())
        remote = [row | {"image": f"{server.url}/{row['image']}"} for row in rows]
        Path("remote.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in remote))
        options = CLASSIFY.replace("--workers 0", "--workers 1 --allow-urls --allow-private-hosts")
        words = f"remote.jsonl {options} --eval-fraction 0.25 --eval-every 2 -o out"
        assert run(words) == 0
    assert not any(line.get("lost") for line in metrics("out"))
    assert "eval_accuracy" in metrics("out")[-1]


def test_complete_run_does_nothing_and_other_settings_are_an_error(run, capsys):
    assert run(f"walls {CLASSIFY} -o out") == 0
    before = Path("out", "model.safetensors").stat().st_mtime_ns
    assert run(f"walls {CLASSIFY} -o out") == 0
    assert Path("out", "model.safetensors").stat().st_mtime_ns == before
    capsys.readouterr()
    for plan in ("", "--dry-run"):
        assert run(f"walls {CLASSIFY} --seed 1 {plan} -o out") == 13
        assert "seed: 0 -> 1" in capsys.readouterr().err
    assert run(f"walls {CLASSIFY} --seed 1 --overwrite --dry-run -o out") == 0
    Path("walls", "red", "00.png").unlink()
    assert run(f"walls {CLASSIFY} -o out") == 13
    assert "rows: " in capsys.readouterr().err
    assert run(f"walls {CLASSIFY} --seed 1 --overwrite -o out") == 0
    assert len(metrics("out")) == 4


def test_deleted_run_is_trained_anew(run):
    assert run(f"walls {CLASSIFY} -o out") == 0
    before = weights("out")["classifier.weight"]
    shutil.rmtree("out")  # its state stays in out.pgcli
    assert run(f"walls {CLASSIFY} --seed 1 -o out") == 0
    assert not torch.equal(weights("out")["classifier.weight"], before)
    assert len(metrics("out")) == 4


def test_changes_of_settings_name_the_defaults():
    unset, given = (
        fixed_settings(TrainOptions(output="x", rank=rank, epochs=rank)) for rank in (None, 4)
    )
    assert differences(unset, given) == ["epochs: default -> 4", "rank: 8 -> 4"]
    assert fixed_settings(TrainOptions(output="x", learning_rate=1e-4)) == unset


def test_foreign_folder_is_not_touched(run):
    Path("out").mkdir()
    Path("out", "notes.txt").write_text("mine")
    assert run(f"walls {CLASSIFY} -o out") == 13
    assert [file.name for file in Path("out").iterdir()] == ["notes.txt"]
    assert not Path("out.pgcli").exists()


def test_unreadable_image_skips_its_row(run, capsys):
    Path("walls", "red", "00.png").write_bytes(b"not an image")
    options = CLASSIFY.replace("--batch-size 6", "--batch-size 12")
    assert run(f"walls {options} -o out") == 3
    assert "skipped 1 unusable row: red/00.png" in capsys.readouterr().err
    assert {line["rows"] for line in metrics("out")} == {11}
    assert {line["lost"] for line in metrics("out")} == {1}
    assert run(f"walls {options} -o out") == 3  # it is complete, and its rows are still lost
    assert json.loads(Path("out", "run.json").read_text())["result"]["unreadable"] == ["red/00.png"]


def test_update_without_any_readable_image_is_skipped(run):
    Path("walls", "red", "00.png").write_bytes(b"not an image")
    options = CLASSIFY.replace("--steps 4 --batch-size 6", "--steps 12 --batch-size 1")
    assert run(f"walls {options} -o out") == 3
    lines = metrics("out")
    assert [line["step"] for line in lines] == [*range(1, 13)]
    assert [line["rows"] for line in lines if line["loss"] is None] == [0]
    assert json.loads(Path("out", "run.json").read_text())["result"]["complete"]


@pytest.mark.parametrize("limit", ["--on-error stop", "--max-errors 0", "--max-errors 5%"])
def test_run_of_too_many_unreadable_images_stops_and_resumes(run, capsys, limit):
    image = Path("walls", "red", "00.png")
    data = image.read_bytes()
    image.write_bytes(b"not an image")
    assert run(f"walls {CLASSIFY} {limit} -o out") == 15
    assert "stopped" in capsys.readouterr().err
    image.write_bytes(data)
    assert run(f"walls {CLASSIFY} {limit} -o out") == 0
    with open("pairs.jsonl", "a") as file:  # a row that may not be read is as one that cannot be
        file.write('{"image": "../outside.png", "text": "a", "label": "a red wall"}\n')
    for plan in ("", "--dry-run"):
        assert run(f"pairs.jsonl {CLASSIFY} {limit} {plan} -o other") == 15


def test_rows_skipped_before_a_resume_set_the_exit_code(run, monkeypatch):
    image = Path("walls", "red", "00.png")
    data = image.read_bytes()
    image.write_bytes(b"not an image")
    options = CLASSIFY.replace("--batch-size 6", "--batch-size 12")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        run(f"walls {options} -o out")
    image.write_bytes(data)
    assert run(f"walls {options} -o out") == 3
    assert [line["lost"] for line in metrics("out")] == [1, 1, 0, 0]


def test_checkpoint_is_trained_further(run):
    options = CONTRASTIVE.replace("--init tiny", "--model demo-towers")
    assert run(f"pairs.jsonl {options} --steps 1 -o out --loss softmax") == 0
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        assert Path("out", name).read_bytes() == (BUILTIN_TOWERS / name).read_bytes()
    before, after = load_file(BUILTIN_TOWERS / "model.safetensors"), weights("out")
    assert before.keys() == after.keys()
    change = max((after[name] - before[name].float()).abs().max().item() for name in before)
    assert 0 < change < 1e-3


def test_texts_beyond_the_length_of_the_towers_are_counted(run, capsys, monkeypatch):
    monkeypatch.setattr("pgcli.training.contrastive.ENCODED_TEXTS", 2)
    rows = [json.loads(line) for line in Path("pairs.jsonl").read_text().splitlines()]
    for row in rows[:3]:
        row["text"] = f"{row['text']} " * 70
    Path("long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(f"long.jsonl {CONTRASTIVE.replace('--steps 4', '--steps 1')} -o out") == 0
    assert "truncated 3 texts to the length of the model's input" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["demo-towers", pytest.param(DEMO, marks=pytest.mark.slow)])
def test_probe_trains_the_head_alone(run, model):
    options = CLASSIFY.replace("--init tiny", f"--model {model} --probe").replace("4", "8")
    assert run(f"walls {options} --learning-rate 0.05 --eval-fraction 0.25 -o out") == 0
    lines = metrics("out")
    assert lines[-1]["eval_accuracy"] == 1
    assert lines[-1]["accuracy"] > 0.9
    folder = BUILTIN_TOWERS if model == "demo-towers" else BUILTIN_TOWERS.parent / "builtin"
    prefix = "" if model == "demo-towers" else "vision_tower."
    before = load_file(folder / "model.safetensors")
    after = weights("out")
    for name, tensor in after.items():
        if not name.startswith("classifier."):
            assert torch.equal(tensor, before[prefix + name].float()), name
    found, info = transformers.SiglipForImageClassification.from_pretrained(
        "out", output_loading_info=True
    )
    assert not any(info.values()), info
    assert sorted(found.config.label2id) == ["blue", "green", "red"]


def test_probe_of_two_towers_leaves_both_towers(run):
    options = CONTRASTIVE.replace("--init tiny", "--model demo-towers --probe")
    assert run(f"pairs.jsonl {options} -o out") == 0
    before = load_file(BUILTIN_TOWERS / "model.safetensors")
    changed = {
        name.split(".")[0] + "." + name.split(".")[1] if "." in name else name
        for name, tensor in weights("out").items()
        if not torch.equal(tensor, before[name].float())
    }
    assert changed == {"vision_model.head", "text_model.head", "logit_scale", "logit_bias"}


def test_classifier_with_the_same_labels_keeps_its_head(run):
    assert run(f"walls {CLASSIFY} -o first") == 0
    options = CLASSIFY.replace("--init tiny", "--model first").replace("--steps 4", "--steps 1")
    assert run(f"walls {options} --learning-rate 1e-9 -o second") == 0
    first, second = weights("first"), weights("second")
    torch.testing.assert_close(second["classifier.weight"], first["classifier.weight"])
    assert second["classifier.weight"].abs().max() > 0


ANSWERS = "--model demo --prompt x --answer-column text"


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("pairs.jsonl --loss sigmoid", "--loss"),
        ("pairs.jsonl --method full --rank 4 --targets all", "--rank --targets"),
        ("pairs.jsonl --method full --quantize int8 --merge", "--quantize --merge"),
        ("walls --task classify --init tiny --method full --dropout 0.1", "--method --dropout"),
        ("walls --task classify --init tiny --alpha 8", "--alpha"),
    ],
)
def test_option_without_an_effect_is_ignored_with_a_line(run, capsys, words, flags):
    words += f" {ANSWERS}" * words.startswith("pairs")
    assert run(f"{words} -o out --dry-run") == 0
    err = capsys.readouterr().err
    assert all(f"ignored: {flag} applies to " in err for flag in flags.split())
    assert err.count("ignored") == len(flags.split())
    Path("c.toml").write_text('[train]\nloss = "sigmoid"\nmerge = true\nalpha = 8\n')
    kind = "--task classify --init tiny" if "walls" in words else f"{ANSWERS} --method full"
    assert run(f"{words.split()[0]} {kind} -o out --dry-run --config c.toml") == 0
    assert "ignored" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("walls -o out", "--model is missing"),
        ("walls --task classify -o out", "starts from a checkpoint or from random weights"),
        ("walls --task classify --init tiny", "missing option '--output'"),
        ("walls --task classify --init tiny -o -", "-o runs/model"),
        ("walls --task classify --init tiny --probe -o out", "--probe"),
        (
            "walls --task classify --init tiny --prompt x -o out",
            "--prompt applies to training PaliGemma, without --task",
        ),
        (
            "walls --task classify --init tiny --epochs 1 --steps 1 -o out",
            "set the length of the training",
        ),
        ("walls --task classify --init tiny --patience 2 -o out", "needs rows to evaluate on"),
        ("walls --task contrastive --init tiny -o out", "no column 'text'"),
        ("pairs.jsonl --task contrastive --text-column words --init tiny -o out", "words"),
        ("walls/red --task classify --init tiny -o out", "it is directly in walls/red"),
        ("walls --include *red* --task classify --init tiny -o out", "on have the label red"),
        ("walls/*/*.png --task classify --init tiny -o out", "walls/*/*.png is not a folder"),
        ("pairs.jsonl --model demo --text-column foo -o out", "applies to --task contrastive"),
        ("walls --task classify --init tiny -o s3://bucket/x", "train writes to a local folder"),
        ("walls --task classify --init tiny --learning-rate 0 -o out", "must be above 0"),
        (f"pairs.jsonl --task contrastive --model {DEMO} -o out", f"{DEMO} has no text tower"),
        *(
            (f"pairs.jsonl --model demo {words} -o out", message)
            for words, message in (
                ("--freeze vision", "--freeze applies to --method full"),
                ("--method full --freeze vision,projector,decoder", "there is nothing to train"),
                ("--targets vision", "--targets must be one of"),
                ("--init tiny", "--init applies to --task contrastive and --task classify"),
                ("--method full --adapter a", "--adapter applies to --method lora"),
            )
        ),
        (
            "pairs.jsonl --prompt x --answer-column text --model demo-towers -o out",
            "is not a PaliGemma",
        ),
    ],
)
def test_conflicting_options_are_errors(run, capsys, words, message):
    assert run(words) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()
    assert not Path("out.pgcli").exists()


def test_too_few_rows_for_the_processes_is_an_error(run, monkeypatch, capsys):
    several = nullcontext(replace(ALONE, count=12))
    monkeypatch.setattr("pgcli.training.processes.joined_processes", lambda device: several)
    assert run(f"walls {CLASSIFY} --dry-run -o out") == 2
    assert "updates of 6 rows cannot be divided over 12 processes" in capsys.readouterr().err


def test_plan_is_printed_and_nothing_written(run, capsys):
    assert run("walls --task classify --init tiny --eval-fraction 0.25 --dry-run -o out") == 0
    err = capsys.readouterr().err
    assert "rows: 9 to train on, 3 to evaluate on" in err
    assert "steps: 10, 1 per epoch" in err
    assert not Path("out").exists()


def test_every_unusable_row_is_listed(run, capsys):
    """By the plan with the reason, and by the record of the run."""
    names = [f"../{number}.png" for number in range(5)]
    unlike = {"text": "a", "label": "red"}
    rows = [{"image": name} | unlike for name in names]
    rows += [{"image": "images/00.png", "text": "a"}, {"image": "images/gone.png"} | unlike]
    with open("pairs.jsonl", "a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
    words = f"pairs.jsonl {CLASSIFY.replace('--steps 4', '--steps 1')} -o out"
    assert run(f"{words} --dry-run") == 0
    plan = capsys.readouterr().err
    assert "rows: 13 to train on, 0 to evaluate on" in plan
    assert "skipped 5 unusable rows" in plan
    assert all(f"{name}: The path leads outside" in plan for name in names)
    assert "skipped 1 row without 'label'" in plan
    assert run(words) == 3
    unreadable = json.loads(Path("out", "run.json").read_text())["result"]["unreadable"]
    assert [name for name in unreadable if name != "images/gone.png"] == names


def test_evaluations_are_counted_in_epochs_too(run, capsys):
    plan = "walls --task classify --init tiny --batch-size 4 --eval-fraction 0.25 --dry-run -o out"
    assert run(f"{plan} --eval-every 2e") == 0
    assert "evaluation: every 6 steps" in capsys.readouterr().err  # of 9 rows, in 3 updates
    assert run(f"{plan} --eval-every 0e") == 2
    assert "must be a number of steps, or of epochs" in capsys.readouterr().err


def test_interrupted_run_has_a_status_and_ends_with_the_same_weights(run, monkeypatch, capsys):
    options = f"walls {CLASSIFY} --eval-fraction 0.25 --eval-every 2"
    command = f"{options} -o runs/deep/out"
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert run(command) == 0
    assert not json.loads(Path("runs/deep/out/run.json").read_text())["result"]["complete"]
    capsys.readouterr()
    assert main(["status", "runs/deep/out"]) == 0
    out = capsys.readouterr().out
    assert "stopped" in out
    assert "3 of 4" in out
    assert "run the same command again" in out
    assert run(command) == 0
    assert run(f"{options} -o whole") == 0
    for folder in (".", "last"):
        assert same(f"runs/deep/out/{folder}", f"whole/{folder}")
    capsys.readouterr()
    assert main(["status", "runs/deep/out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["step"], found["steps"]) == ("complete", 4, 4)
    assert found["best"]["accuracy"] >= 0
    assert run(f"{command} --learning-rate 0.5") == 13
    assert "to train it further: --model runs/deep/out and another -o" in capsys.readouterr().err


def test_towers_of_the_softmax_loss_have_no_sigmoid_and_a_bounded_scale(run, monkeypatch, capsys):
    options = f"{CONTRASTIVE} --loss softmax --learning-rate 5"
    assert run(f"pairs.jsonl {options} -o out") == 0
    assert weights("out")["logit_scale"].item() <= math.log(100) + 1e-6
    capsys.readouterr()
    score = "score images/00.png --model out --text red --text blue --workers 0 --device cpu"
    assert main(score.split()) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["score"] for one in row["scores"]] == [None, None]
    assert sum(one["probability"] for one in row["scores"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "example", "command"),
    [
        ({}, "is there a star?", "ask photos M --prompt 'is there a star?'"),
        ({}, "caption en", "ask photos M --prompt 'caption en'"),
        ({}, "caption <loc0102><loc0102><loc0512><loc1023>", "ask photos M --prompt caption"),
        ({"method": "full"}, "ocr", "ask photos --model out --prompt ocr"),
        ({"task": "classify"}, "rose", "classify photos --model out"),
        ({"task": "contrastive"}, "a rose", "score photos --model out --text 'a rose'"),
    ],
)
def test_hint_after_training_is_a_command_for_the_task(options, example, command):
    made = use_of(TrainOptions(model="demo", output="out", **options), example)
    assert made == "pgcli " + command.replace("M", "--model demo --adapter out")
