"""Reading config.json: supported settings, defaults, and errors that name the key."""

import math
from copy import deepcopy

import pytest
import transformers

from pgcli.checkpoints.config import parse_config
from tests.support.published import paligemma_3b

PUBLISHED = paligemma_3b()
ABSENT = object()


def published(**changes):
    """The published values with some keys set, as `text_config__head_dim=64`, or removed."""
    values = deepcopy(PUBLISHED)
    for path, value in changes.items():
        *levels, key = path.split("__")
        section = values
        for level in levels:
            section = section[level]
        if value is ABSENT:
            section.pop(key, None)
        else:
            section[key] = value
    return values


def refusal(**changes):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the callers check the message
        parse_config(published(**changes))
    return str(refused.value)


class TestFirstGenerationAsPublished:
    def test_every_published_size_is_read_from_config(self):
        config = parse_config(PUBLISHED)
        vision, decoder = config.vision, config.decoder
        assert (vision.width, vision.depth, vision.mlp_dim) == (1152, 27, 4304)
        assert (vision.num_heads, vision.patch_size, vision.resolution) == (16, 14, 224)
        assert (vision.norm_eps, vision.head_dim, config.image_tokens) == (1e-6, 72, 256)
        assert (decoder.width, decoder.depth, decoder.mlp_dim) == (2048, 18, 16384)
        assert (decoder.num_heads, decoder.num_kv_heads, decoder.head_dim) == (8, 1, 256)
        assert (decoder.vocab_size, decoder.norm_eps) == (257216, 1e-6)
        assert (decoder.rope_theta, decoder.max_positions) == (10_000.0, 8192)
        assert (config.image_token_id, config.stop_tokens, config.tied) == (257152, (1,), True)


class TestMissingKeysTakeTransformersDefaults:
    def test_sizes_of_both_towers_equal_transformers(self):
        config = parse_config(published(vision_config={}, text_config={}, projection_dim=ABSENT))
        sizes = {"width": "hidden_size", "depth": "num_hidden_layers"}
        sizes |= {"mlp_dim": "intermediate_size", "num_heads": "num_attention_heads"}
        vision = {"patch_size": "patch_size", "resolution": "image_size"}
        vision |= {"norm_eps": "layer_norm_eps"}
        decoder = {"num_kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
        decoder |= {"vocab_size": "vocab_size", "norm_eps": "rms_norm_eps"}
        decoder |= {"max_positions": "max_position_embeddings"}
        for found, default, names in (
            (config.vision, transformers.SiglipVisionConfig(), sizes | vision),
            (config.decoder, transformers.GemmaConfig(), sizes | decoder),
        ):
            for name, hf_name in names.items():
                assert getattr(found, name) == getattr(default, hf_name), name

    def test_rope_stop_token_and_tied_head_defaults_equal(self):
        config, default = parse_config(published(eos_token_id=ABSENT)), transformers.GemmaConfig()
        assert config.decoder.rope_theta == default.rope_parameters["rope_theta"]
        assert default.rope_parameters["rope_type"] == "default"
        assert config.stop_tokens == (default.eos_token_id,)
        assert config.tied is transformers.PaliGemmaConfig().tie_word_embeddings

    def test_null_means_the_default(self):
        nulls = published(
            vision_config__image_size=None,
            text_config__head_dim=None,
            text_config__rope_scaling=None,
            text_config__hidden_activation=None,
            text_config__rope_parameters=None,
            quantization_config=None,
        )
        assert parse_config(nulls) == parse_config(PUBLISHED)

    @pytest.mark.parametrize("section", ["vision_config", "text_config"])
    @pytest.mark.parametrize("value", [ABSENT, None])
    def test_a_missing_section_is_an_error(self, section, value):
        assert refusal(**{section: value}) == f"{section} is missing"

    def test_the_image_token_has_no_default(self):
        assert refusal(image_token_index=ABSENT) == "image_token_index is missing"
        renamed = published(image_token_index=ABSENT, image_token_id=257152)
        assert parse_config(renamed) == parse_config(PUBLISHED)


class TestHarmlessKeys:
    @pytest.mark.parametrize(
        "changes",
        [
            {"_vocab_size": 1, "vocab_size": 3, "ignore_index": -7, "architectures": ["Other"]},
            {"text_config__num_image_tokens": 9, "vision_config__num_positions": 9},
            {"vision_config__vision_use_head": False, "text_config__attention_bias": False},
            {"text_config__initializer_range": 0.5, "text_config__attention_dropout": 0.5},
            {"text_config__use_cache": False, "text_config__cache_implementation": "hybrid"},
            {"text_config__hidden_act": "gelu", "text_config__hidden_activation": None},
            {"_attn_implementation_autoset": True, "_attn_implementation_internal": "evil/kernel"},
            {"auto_map": {"AutoModel": "evil.py"}, "_name_or_path": "/home/someone"},
        ],
    )
    def test_harmless_keys_are_accepted_silently(self, changes, capfd):
        assert parse_config(published(**changes)) == parse_config(PUBLISHED)
        assert capfd.readouterr() == ("", "")


class TestUnsupportedSettings:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("quantization_config", {"load_in_4bit": True}),
            ("text_config__quantization_config", {"quant_method": "gptq"}),
            ("text_config__attention_bias", True),
            ("text_config__hidden_act", "silu"),
            ("text_config__hidden_activation", "gelu"),
            ("vision_config__hidden_act", "quick_gelu"),
            ("vision_config__vision_use_head", True),
            ("vision_config__num_channels", 1),
            ("vision_config__model_type", "clip_vision_model"),
            ("text_config__model_type", "gemma3_text"),
            ("text_config__model_type", "llama"),
            ("text_config__rope_scaling", {"type": "linear", "factor": 2.0}),
            ("text_config__rope_parameters", {"rope_type": "linear", "factor": 2.0}),
            ("text_config__rope_parameters", {"rope_type": "default", "factor": 2.0}),
            ("text_config__attn_logit_softcapping", 50.0),
            ("text_config__final_logit_softcapping", 30.0),
            ("text_config__query_pre_attn_scalar", 144),
            ("text_config__sliding_window", 4096),
            ("text_config__layer_types", ["full_attention"]),
            ("text_config__use_bidirectional_attention", False),
            ("model_type", "colpali"),
            ("projection_dim", 2304),
        ],
    )
    def test_unsupported_setting_is_named(self, key, value):
        message = refusal(**{key: value})
        assert key.replace("__", ".") in message
        assert isinstance(value, dict) or repr(value) in message

    def test_another_model_type_is_reported_before_its_settings(self):
        with pytest.raises(ValueError, match="model_type is 'gemma3', not 'paligemma'"):
            parse_config({"model_type": "gemma3", "anything": 1})
        with pytest.raises(ValueError, match="model_type is None"):
            parse_config({})

    def test_messages_are_short_and_printable(self):
        for value in ("\x1b[2J" * 10_000, list(range(10_000)), 10**4000):
            for key in ("rope_scaling", "projection_dim", "text_config__head_dim", "model_type"):
                message = refusal(**{key: value})
                assert len(message) < 200
                assert message.isprintable()


#: Keys of transformers' classes that do not change an answer: bookkeeping, training, caches.
HARMLESS = frozenset(
    """
    _name_or_path architectures attention_dropout bos_token_id chunk_size_feed_forward dtype
    id2label initializer_range is_encoder_decoder label2id output_attentions output_hidden_states
    pad_token_id problem_type return_dict transformers_version use_cache vocab_size
    """.split()
)


def keys(*kinds):
    """The keys that configuration classes of the installed transformers write and read."""
    names = set().union(*(kind().to_dict().keys() | kind.attribute_map.keys() for kind in kinds))
    return sorted(names - HARMLESS)


class TestUnknownKeys:
    @pytest.mark.parametrize("key", ["text_config__made_up", "vision_config__made_up", "made_up"])
    @pytest.mark.parametrize("value", [0, False, "x", {"a": 1}])
    def test_a_key_that_transformers_does_not_know_either_is_ignored(self, key, value):
        assert parse_config(published(**{key: value})) == parse_config(PUBLISHED)

    @pytest.mark.parametrize("key", keys(transformers.GemmaConfig, transformers.Gemma2Config))
    def test_every_known_key_of_the_decoder_is_checked(self, key):
        """No key is ignored: the error for an invalid value names its key."""
        with pytest.raises(ValueError, match=key):
            parse_config(published(**{f"text_config__{key}": ["no such value"]}))

    @pytest.mark.parametrize("key", keys(transformers.SiglipVisionConfig))
    def test_every_known_key_of_the_vision_tower_is_checked(self, key):
        with pytest.raises(ValueError, match=key):
            parse_config(published(**{f"vision_config__{key}": ["no such value"]}))


SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
SIZES = [
    *(f"vision_config__{name}" for name in (*SIZES, "patch_size", "image_size")),
    *(f"text_config__{name}" for name in (*SIZES, "num_key_value_heads", "head_dim")),
    *("text_config__vocab_size", "text_config__max_position_embeddings"),
]


class TestValuesOutOfRange:
    @pytest.mark.parametrize("value", [0, 10**9, 10**400, 64.0, True, "64", [64], math.nan])
    @pytest.mark.parametrize("key", SIZES)
    def test_sizes_are_integers_within_range(self, key, value):
        assert key.replace("__", ".") in refusal(**{key: value})

    @pytest.mark.parametrize("value", [0, math.nan, 10**400, "1e-6", True])
    @pytest.mark.parametrize(
        "key",
        ["vision_config__layer_norm_eps", "text_config__rms_norm_eps", "text_config__rope_theta"],
    )
    def test_a_real_number_is_positive_and_finite(self, key, value):
        assert key.replace("__", ".") in refusal(**{key: value})

    @pytest.mark.parametrize("value", [0, -5, "257152", 2.0, 1 << 40, None])
    def test_the_image_token_is_an_id(self, value):
        assert "image_token_index" in refusal(image_token_index=value)


class TestContradictingSizes:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"vision_config__num_attention_heads": 7}, "7, which does not divide the width 1152"),
            ({"vision_config__image_size": 225}, "patches of 14 do not divide .* 225"),
            ({"text_config__num_key_value_heads": 3}, "3 key/value heads do not divide 8 heads"),
            ({"text_config__head_dim": 255}, "head_dim is 255, not an even number"),
            ({"text_config__hidden_size": 1024}, "projection_dim is 2048, not .* 1024"),
        ],
    )
    def test_contradicting_sizes_are_an_error(self, changes, message):
        with pytest.raises(ValueError, match=message):
            parse_config(published(**changes))


class TestRope:
    @pytest.mark.parametrize(
        "where",
        [
            {"text_config__rope_theta": 5000.0},
            {"text_config__rope_theta": 5000},
            {"text_config__rope_parameters": {"rope_theta": 5000.0}},
            {"text_config__rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
            {
                "text_config__rope_parameters": {"rope_type": "default"},
                "text_config__rope_theta": 5000.0,
            },
            {"text_config__rope_parameters": {"rope_theta": 5000.0}, "text_config__rope_theta": 9},
        ],
    )
    def test_rope_theta_is_read_as_in_transformers(self, where):
        values = published(**where)
        expected = transformers.PaliGemmaConfig(**deepcopy(values)).text_config.rope_parameters
        assert parse_config(values).decoder.rope_theta == expected["rope_theta"] == 5000.0


class TestTiedHead:
    @pytest.mark.parametrize("top", [True, False, ABSENT])
    @pytest.mark.parametrize("text", [True, False, ABSENT])
    def test_the_top_level_decides_as_in_transformers(self, top, text):
        values = published(tie_word_embeddings=top, text_config__tie_word_embeddings=text)
        expected = transformers.PaliGemmaConfig(**deepcopy(values)).tie_word_embeddings
        assert parse_config(values).tied is expected
