"""Small random checkpoints of Gemma 3 that transformers writes, for comparison with it."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from pgcli.checkpoints.find import BUILTIN

VOCABULARY, TOKENS = 1920, 1915  # the model has more rows than the tokenizer tokens
RESOLUTION, PATCH = 56, 14
#: The tokens around and in place of an image take the places of unused ones.
BEGIN, END, IMAGE = "<start_of_image>", "<end_of_image>", "<image_soft_token>"
TEMPLATE = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}"
    "{%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}"
    "{%- set turns = messages[1:] -%}{%- else -%}{%- set prefix = '' -%}"
    "{%- set turns = messages -%}{%- endif -%}{%- for turn in turns -%}"
    "{{ '<start_of_turn>' + turn['role'] + '\n' + (prefix if loop.first else '') }}"
    "{%- for item in turn['content'] -%}{%- if item['type'] == 'image' -%}"
    "{{ '<start_of_image>' }}{%- else -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}"
    "{{ '<end_of_turn>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)


def tokenizer_json() -> dict[str, Any]:
    """The built-in model's tokenizer with Gemma 3's names."""
    names = {"<unused0>": BEGIN, "<unused1>": END, "<unused2>": IMAGE}
    values: dict[str, Any] = json.loads((BUILTIN / "tokenizer.json").read_text("utf-8"))
    model = values["model"]
    model["vocab"] = {names.get(name, name): token for name, token in model["vocab"].items()}
    values["added_tokens"] = [
        token | {"content": names.get(token["content"], token["content"])}
        for token in values["added_tokens"]
        if not token["content"].startswith(("<loc", "<seg"))
    ]
    return values


def token_id(name: str) -> int:
    return int(tokenizer_json()["model"]["vocab"][name])


def reference(
    *,
    seed: int = 0,
    image_tokens: int = 4,
    window: int = 40,
    pattern: int = 2,
    factor: float = 8.0,
    **decoder: Any,
) -> transformers.Gemma3ForConditionalGeneration:
    """transformers' model with random weights."""
    torch.manual_seed(seed)
    depth = decoder.pop("num_hidden_layers", 4)
    kinds = ("sliding_attention", "full_attention")
    full = {"rope_type": "linear", "factor": factor, "rope_theta": 1e6}
    text = transformers.Gemma3TextConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=depth,
        sliding_window=window,
        layer_types=[kinds[(layer + 1) % pattern == 0] for layer in range(depth)],
        rope_parameters={
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        **{
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "max_position_embeddings": 4096,
        }
        | decoder,
    )
    vision = transformers.SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=RESOLUTION,
        patch_size=PATCH,
        vision_use_head=False,
    )
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=image_tokens,
        boi_token_index=token_id(BEGIN),
        eoi_token_index=token_id(END),
        image_token_index=token_id(IMAGE),
        eos_token_id=[1, token_id("<end_of_turn>")],
    )
    model = transformers.Gemma3ForConditionalGeneration(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.add_(torch.randn_like(parameter) * 0.1)
        elif "embed_tokens" not in name:
            parameter.mul_(6)
    projection = model.model.multi_modal_projector.mm_input_projection_weight
    projection.copy_(torch.randn_like(projection) * 0.5)
    return model


def files_into(folder: Path, *, image_tokens: int = 4, template: str | None = TEMPLATE) -> None:
    """Write the tokenizer, its chat template and the image processor."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "boi_token": BEGIN,
        "eoi_token": END,
        "image_token": IMAGE,
        "extra_special_tokens": {"boi_token": BEGIN, "eoi_token": END, "image_token": IMAGE},
    }
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    size = {"height": RESOLUTION, "width": RESOLUTION}
    transformers.Gemma3ImageProcessorPil(size=size, image_seq_length=image_tokens).save_pretrained(
        folder
    )


def write_checkpoint(folder: Path, *, template: str | None = TEMPLATE, **settings: Any) -> Path:
    """Write a checkpoint."""
    reference(**settings).save_pretrained(folder)
    files_into(folder, image_tokens=settings.get("image_tokens", 4), template=template)
    return folder
