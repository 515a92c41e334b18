"""The keys that transformers' configuration classes have, for each level of a `config.json`.

The tests compare these tables with the installed transformers.
"""

from __future__ import annotations

_EVERY_LEVEL = """
    _name_or_path architectures chunk_size_feed_forward dtype id2label is_encoder_decoder label2id
    model_type output_attentions output_hidden_states problem_type return_dict transformers_version
    """
#: PaliGemmaConfig
TOP_KEYS = frozenset(
    f"""{_EVERY_LEVEL}
    hidden_size image_token_id image_token_index projection_dim text_config tie_word_embeddings
    vision_config vocab_size
    """.split()
)
#: SiglipVisionConfig
VISION_KEYS = frozenset(
    f"""{_EVERY_LEVEL}
    attention_dropout hidden_act hidden_size image_size intermediate_size layer_norm_eps
    num_attention_heads num_channels num_hidden_layers patch_size vision_use_head
    """.split()
)
#: GemmaConfig and Gemma2Config: a key of the other generation is not supported either.
TEXT_KEYS = frozenset(
    f"""{_EVERY_LEVEL}
    attention_bias attention_dropout attn_logit_softcapping bos_token_id eos_token_id
    final_logit_softcapping head_dim hidden_act hidden_activation hidden_size initializer_range
    intermediate_size layer_types max_position_embeddings num_attention_heads num_hidden_layers
    num_key_value_heads pad_token_id query_pre_attn_scalar rms_norm_eps rope_parameters
    sliding_window tie_word_embeddings use_bidirectional_attention use_cache vocab_size
    """.split()
)
