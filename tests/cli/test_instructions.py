"""Commands with a model that follows instructions: prompts, limits, resume, refusals."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

import pgcli
from pgcli.errors import UsageError
from pgcli.tasks import CAPTION, OCR
from tests.support.tiny_gemma3 import write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("gemma3") / "model", window=12)


@pytest.fixture(autouse=True)
def folder(workdir, checkpoint):
    """The current folder, with images and the model."""
    shutil.copytree(checkpoint, "model")
    Path("photos").mkdir()
    for number in range(6):
        Image.effect_noise((40 + number, 30), 80).convert("RGB").save(f"photos/{number}.png")


def rows(file="out.jsonl"):
    return [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("command", "prompt", "limit"),
    [
        ("caption", CAPTION, 256),
        ("caption --lang de", f"{CAPTION} Write in German.", 256),
        ("caption --lang pt-BR", f"{CAPTION} Write in the language with the tag pt-BR.", 256),
        ("ocr", OCR, 1024),
        ("ask --prompt caption\\ en", "caption en", 256),
    ],
)
def test_prompts_and_limits_fit_the_model(command, prompt, limit, cli):
    code, out, _ = cli(f"{command} photos/0.png --model model --format jsonl")
    row = json.loads(out)
    assert (code, row["prompt"], row["error"]) == (0, prompt, None)
    assert row["tokens"] <= limit
    assert row["finish"] == "stop" or row["tokens"] == limit
    assert row["boxes"] == []


def test_rows_do_not_depend_on_the_batch_or_on_engines(cli):
    command = "caption photos --model model --max-new-tokens 20 --no-timing -o"
    assert cli(f"{command} one.jsonl --batch-size 1")[0] == 0
    assert cli(f"{command} four.jsonl --batch-size 4")[0] == 0
    assert cli(f"{command} engines.jsonl --engines 2 --device cpu")[0] == 0
    assert [row["answer"] for row in rows("one.jsonl")] == [
        row["answer"] for row in rows("four.jsonl")
    ]
    assert [row["answer"] for row in rows("one.jsonl")] == [
        row["answer"] for row in rows("engines.jsonl")
    ]


def test_system_text_opens_the_conversation(cli):
    command = "caption photos --model model --max-new-tokens 12 --no-timing -o"
    assert cli(f"{command} plain.jsonl")[0] == 0
    assert cli(f"{command} polite.jsonl --system 'You are a pirate.'")[0] == 0
    plain, polite = rows("plain.jsonl"), rows("polite.jsonl")
    assert [row["prompt"] for row in plain] == [row["prompt"] for row in polite]
    assert [row["answer"] for row in plain] != [row["answer"] for row in polite]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("detect photos --object cat --model model", "cannot detect"),
        ("segment photos --object cat --model model", "cannot segment"),
        ("embed photos --model model", "cannot embed"),
        ("caption photos --model model --region 0,0,9,9", "--region"),
        ("ask photos --prompt x --model model --dtype float16 --device cpu", "float16"),
        ("explain model photos/0.png --prompt x -o page.html", "explain needs PaliGemma"),
        ("train rows.jsonl --model model -o out", "PaliGemma"),
        ("caption photos --model demo --system x", "--system"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_name(command, said, cli):
    Path("rows.jsonl").write_text('{"image": "photos/0.png", "prefix": "a", "suffix": "b"}\n')
    code, _, err = cli(command)
    assert code in (2, 17)
    assert said.strip("<") in err


def test_system_text_needs_a_chat_template(cli):
    settings = json.loads(Path("model/tokenizer_config.json").read_text())
    del settings["chat_template"]
    Path("model/tokenizer_config.json").write_text(json.dumps(settings))
    assert cli("caption photos/0.png --model model --max-new-tokens 2")[0] == 0
    code, _, err = cli("caption photos/0.png --model model --system x")
    assert code == 2
    assert "was trained on conversations" in err


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{{ messages[0]['content'][0]['text'] }}",
        "{% for a in range(10) %}{{ a.__class__.__mro__ }}{% endfor %}",
        "{{ 1 / 0 }}",
        "{% broken",
        "{% include 'x' %}",
        7,
    ],
)
def test_another_chat_template_is_refused(template, cli):
    settings = json.loads(Path("model/tokenizer_config.json").read_text())
    settings["chat_template"] = template
    Path("model/tokenizer_config.json").write_text(json.dumps(settings))
    code, _, err = cli("caption photos/0.png --model model")
    assert code == 16
    assert "chat template" in err


def test_row_with_a_region_is_an_error_row(cli):
    Path("rows.jsonl").write_text(
        '{"image": "photos/0.png", "region": [0, 0, 9, 9]}\n{"image": "photos/1.png"}\n'
    )
    code, out, _ = cli("caption rows.jsonl --model model --max-new-tokens 2 --format jsonl")
    first, second = map(json.loads, out.splitlines())
    assert code == 3
    assert (first["error"], second["error"]) == ("no_prompt", None)
    assert "location tokens" in first["error_message"]


def test_python_asks_the_same_as_the_command(cli):
    assert cli("caption photos --model model --max-new-tokens 6 -o out.jsonl")[0] == 0
    engine = pgcli.load("model", device="cpu")
    answers = [*engine.caption("photos", max_new_tokens=6)]
    assert [(a.prompt, a.answer) for a in answers] == [
        (row["prompt"], row["answer"]) for row in rows()
    ]
    [answer] = engine.ask("photos/0.png", "x", choice=["yes", "no"], system="Be brief.")
    assert sum(choice.probability for choice in answer.choices) == pytest.approx(1)
    with pytest.raises(UsageError, match="cannot detect"):
        [*engine.detect("photos", "cat")]
    with pytest.raises(UsageError, match="system"):
        [*pgcli.load("demo").caption("photos", system="x")]


def test_info_names_the_family_and_256_slots_plan(cli):
    code, out, _ = cli("info model --json")
    values = json.loads(out)
    assert (code, values["kind"], values["image_tokens"]) == (0, "instruct", 4)
    assert values["architecture"]["generation"] == 3
