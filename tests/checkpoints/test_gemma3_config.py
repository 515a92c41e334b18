"""Gemma 3's configuration: old and new keys give the same sizes; what is unsupported is refused."""

import json

import pytest
import torch

from pgcli.checkpoints.config import read_config, read_description
from pgcli.checkpoints.families.gemma3 import parse_gemma3
from pgcli.checkpoints.files import required_files
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.checkpoints.tokenizer import has_conversations
from pgcli.engine.memory import parameters, prompt_slots
from pgcli.errors import InvalidCheckpoint
from pgcli.model.optimize import float16_problem
from pgcli.model.quantized import quantization_problem
from tests.support.tiny_gemma3 import TEMPLATE, reference

VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
    "vision_use_head": False,
}
# as published for 4b: only these keys of the decoder are stated
SPARSE = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255_999,
    "eoi_token_index": 256_000,
    "image_token_index": 262_144,
    "eos_token_id": [1, 106],
    "mm_tokens_per_image": 256,
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": VISION,
}
# as transformers 5 writes them
NEW = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "layer_types": [
        "full_attention" if (n + 1) % 6 == 0 else "sliding_attention" for n in range(34)
    ],
    "_sliding_window_pattern": 6,
    "use_bidirectional_attention": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}


def values(**text):
    return SPARSE | {"text_config": SPARSE["text_config"] | text}


def test_sparse_configuration_of_4b_has_its_sizes():
    config = parse_gemma3(SPARSE)
    decoder = config.decoder
    assert (decoder.num_heads, decoder.num_kv_heads, decoder.head_dim) == (8, 4, 256)
    assert (decoder.vocab_size, decoder.max_positions) == (262_208, 131_072)
    assert (decoder.rope_theta, decoder.local_rope_theta, decoder.rope_factor) == (1e6, 1e4, 8)
    assert [n for n in range(34) if not decoder.is_sliding(n)] == [5, 11, 17, 23, 29]
    assert (decoder.query_pre_attn_scalar, decoder.first_position) == (256, 0)
    assert config.stop_tokens == (1, 106)
    assert config.image_tokens == 256
    assert parameters(config) == 4_300_079_472
    assert prompt_slots(config) < 400


def test_old_and_new_keys_give_the_same_sizes():
    text = {key: value for key, value in SPARSE["text_config"].items() if key != "rope_scaling"}
    new = SPARSE | {"text_config": text | NEW}
    new = {key.replace("_token_index", "_token_id"): value for key, value in new.items()}
    old = values(rope_theta=1e6, rope_local_base_freq=1e4, sliding_window_pattern=6)
    older = values(rope_scaling={"factor": 8.0, "type": "linear"})
    assert parse_gemma3(new) == parse_gemma3(old) == parse_gemma3(older) == parse_gemma3(SPARSE)
    assert parse_gemma3(values(rope_scaling=None)).decoder.rope_factor == 1


def test_configuration_that_transformers_writes_is_read(tmp_path):
    reference(window=6, pattern=3, num_hidden_layers=5).save_pretrained(tmp_path)
    decoder = read_config(tmp_path).decoder
    assert decoder.sliding_layers == (True, True, False, True, True)
    assert (decoder.sliding_window, decoder.rope_factor) == (6, 8)
    assert read_description(tmp_path).kind == "instruct"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0, "beta": 1}}, "beta"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "factor",
        ),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "gemma3n_text"}, "model_type"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "key/value heads"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"sliding_window": 1}, "sliding_window"),
    ],
)
def test_unsupported_settings_of_the_decoder_are_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=named):
        parse_gemma3(values(**changes))


@pytest.mark.parametrize("tokens", [250, 9, 4097])
def test_image_tokens_must_be_a_grid_of_the_patches(tokens):
    with pytest.raises(ValueError, match="mm_tokens_per_image"):
        parse_gemma3(SPARSE | {"mm_tokens_per_image": tokens})


def test_model_without_vision_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gemma3_text"}')
    with pytest.raises(InvalidCheckpoint, match="without vision"):
        read_description(tmp_path)


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_a_template_of_its_own_file_is_downloaded_and_read(name, tmp_path):
    names = ["config.json", "model.safetensors", "tokenizer.json", name]
    assert name in required_files("google/gemma-3-4b-it", "model", names, tmp_path.joinpath)
    assert not has_conversations(tmp_path)
    text = TEMPLATE if name.endswith(".jinja") else json.dumps({"chat_template": TEMPLATE})
    (tmp_path / name).write_text(text)
    assert has_conversations(tmp_path)


def test_float16_is_refused_by_name():
    assert "Gemma 3" in float16_problem(parse_gemma3(SPARSE))


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_quantization_is_refused_by_name(name):
    decoder = parse_gemma3(SPARSE).decoder
    problem = quantization_problem(name, torch.device("cpu"), torch.bfloat16, decoder)
    assert problem is not None
    assert "Gemma 3" in problem[0]


def test_images_are_resized_bilinearly_without_pan_and_scan(tmp_path):
    size = {"height": 896, "width": 896}
    settings = {"image_processor_type": "Gemma3ImageProcessor", "size": size}
    file = tmp_path / "preprocessor_config.json"
    for stated in (None, False):
        file.write_text(json.dumps(settings | {"do_pan_and_scan": stated}))
        assert read_preprocessing(tmp_path, 896, "gemma3").resample == 2
    file.write_text(json.dumps(settings | {"do_pan_and_scan": True}))
    with pytest.raises(InvalidCheckpoint, match="do_pan_and_scan"):
        read_preprocessing(tmp_path, 896, "gemma3")
