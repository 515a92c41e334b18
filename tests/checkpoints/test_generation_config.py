"""The stop tokens of `generation_config.json`, and its settings that are not followed."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from pgcli.checkpoints.config import read_config, warn_not_followed
from pgcli.checkpoints.find import BUILTIN
from pgcli.cli.main import main
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import InvalidCheckpoint
from pgcli.verify.reference import load_reference

EXAMPLE = Path(__file__).parents[2] / "examples" / "images" / "one.png"
ABSENT = object()


def changed(folder: Path, model: Path, generation: Any, **eos: Any) -> Path:
    """A copy of a model with another `generation_config.json` and other ids in `config.json`."""
    shutil.copytree(model, folder)
    file = folder / "generation_config.json"
    file.unlink(missing_ok=True)
    if generation is not ABSENT:
        file.write_text(json.dumps(generation))
    values = json.loads((folder / "config.json").read_text())
    for level, ids in eos.items():
        section = values if level == "top" else values["text_config"]
        section.pop("eos_token_id", None)
        if ids is not ABSENT:
            section["eos_token_id"] = ids
    (folder / "config.json").write_text(json.dumps(values))
    return folder


class TestStopTokens:
    @pytest.mark.parametrize(
        ("generation", "top", "text"),
        [
            ({"eos_token_id": 5}, 1, 7),
            ({"eos_token_id": [5, 6]}, [1], ABSENT),
            (ABSENT, [3, 4], 7),
            (ABSENT, 1, [1, 107]),
            (ABSENT, ABSENT, [8, 9]),
            (ABSENT, None, 7),
        ],
    )
    def test_stop_tokens_equal_transformers(self, tiny, tmp_path, generation, top, text):
        folder = changed(tmp_path / "model", tiny, generation, top=top, text=text)
        model = load_reference(folder, torch.float32, torch.device("cpu"))
        ids = model.generation_config.eos_token_id
        assert read_config(folder).stop_tokens == tuple(ids if isinstance(ids, list) else [ids])

    @pytest.mark.parametrize("generation", [{}, {"eos_token_id": None}, {"eos_token_id": []}])
    def test_stop_tokens_fall_back_to_config_json(self, tiny, tmp_path, generation):
        """transformers would never end an answer."""
        folder = changed(tmp_path / "model", tiny, generation, top=7, text=1)
        assert read_config(folder).stop_tokens == (7,)

    @pytest.mark.parametrize("generation", [[], {"eos_token_id": "</s>"}, {"eos_token_id": -1}])
    def test_invalid_file_is_named(self, tiny, tmp_path, generation):
        folder = changed(tmp_path / "model", tiny, generation)
        with pytest.raises(InvalidCheckpoint, match=r"generation_config\.json"):
            read_config(folder)

    def test_answers_end_with_stop_tokens(self, tmp_path, capsys):
        whole = caption(BUILTIN, capsys)
        ids = Tokenizer.from_folder(BUILTIN).encode_answer(whole["answer"])
        folder = changed(tmp_path / "model", BUILTIN, {"eos_token_id": [1, ids[2]]})
        cut = caption(folder, capsys)
        assert whole["tokens"] > 3
        assert (cut["tokens"], cut["finish"]) == (3, "stop")
        assert whole["answer"].startswith(cut["answer"])


def caption(model: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The row of an example, through the command line."""
    assert main(["caption", str(EXAMPLE), "--model", str(model)]) == 0
    return dict(json.loads(capsys.readouterr().out))


class TestSettings:
    def test_one_warning_names_the_settings_that_change_greedy_answers(self, tiny, tmp_path):
        image_token = read_config(tiny).image_token_id
        followed = {"suppress_tokens": [image_token], "do_sample": True, "temperature": 0.7}
        neutral = {"repetition_penalty": 1.0, "num_beams": 1, "min_length": 0, "max_length": 20}
        folder = changed(tmp_path / "neutral", tiny, {"eos_token_id": 1} | followed | neutral)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read_config(folder)
        settings = {"repetition_penalty": 1.3, "min_new_tokens": 4, "suppress_tokens": [7]}
        folder = changed(tmp_path / "model", tiny, {"eos_token_id": 1} | settings)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("default")
            for _ in range(2):
                read_config(folder)
        (message,) = [str(one.message) for one in told]
        assert all(f"{name} = " in message for name in settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"eos_token_id": [1, 40, 41, 42, 43, 44, 45, 46, 47]},
        {"eos_token_id": 1, "repetition_penalty": 5.0},
    ],
)
def test_verify_compares_greedy_answers_whatever_the_settings(tiny, tmp_path, settings):
    folder = changed(tmp_path / "model", tiny, settings)
    warn_not_followed.cache_clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        assert main(["verify", str(folder), "--dtype", "float32"]) == 0
    named = [one for one in told if "generation_config.json" in str(one.message)]
    assert len(named) == len(settings) - 1
