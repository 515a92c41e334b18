"""Small random checkpoints of ColPali in every published layout."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from pgcli.checkpoints.find import BUILTIN
from tests.support import tiny

VOCABULARY = 1920
SIZE = 24  # of a vector; the engine's layouts state none, so they have 128
RESOLUTION, PATCH = tiny.RESOLUTION, tiny.PATCH


def reference(*, seed: int = 0, size: int = 128) -> transformers.ColPaliForRetrieval:
    """transformers' model with random weights."""
    vlm = tiny.reference(VOCABULARY, seed=seed)
    vlm.config.image_token_index = vlm.config.image_token_id = image_token()
    torch.manual_seed(seed)
    config = transformers.ColPaliConfig(vlm_config=vlm.config, embedding_dim=size)
    model = transformers.ColPaliForRetrieval(config).eval().requires_grad_(False)
    model.vlm.load_state_dict(vlm.model.state_dict())
    model.embedding_proj_layer.bias.normal_(std=0.3)
    return model


def image_token() -> int:
    values = json.loads((BUILTIN / "tokenizer.json").read_text("utf-8"))
    return int(values["model"]["vocab"]["<image>"])


def write_hf(folder: Path, *, seed: int = 0, size: int = 128) -> Path:
    """The layout of transformers, with its configuration, tokenizer and preprocessing."""
    reference(seed=seed, size=size).save_pretrained(folder)
    tiny.tokenizer_into(folder)
    return folder


def processor(folder: Path) -> transformers.ColPaliProcessor:
    """transformers' processor with the tokenizer of a checkpoint."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    size = {"height": RESOLUTION, "width": RESOLUTION}
    images = transformers.SiglipImageProcessorPil(size=size, image_seq_length=tiny.PATCHES)
    return transformers.ColPaliProcessor(image_processor=images, tokenizer=tokenizer)


#: The name of a tensor that transformers 5 writes in the other layouts: outer module, names of the
#: decoder and the tower, and the projection.
LAYOUTS = {
    "hf": ("vlm.", "language_model.model.", "vision_tower.", "embedding_proj_layer."),
    "hf-old": (
        "vlm.",
        "language_model.model.",
        "vision_tower.vision_model.",
        "embedding_proj_layer.",
    ),
    "hf-modules": ("vlm.", "model.language_model.", "model.vision_tower.", "embedding_proj_layer."),
    "merged": (
        "model.",
        "language_model.model.",
        "vision_tower.vision_model.",
        "custom_text_proj.",
    ),
    "engine-5": ("model.", "model.language_model.", "model.vision_tower.", "custom_text_proj."),
}


def write_layout(folder: Path, layout: str, *, seed: int = 0, has_head: bool = True) -> Path:
    """The same weights in one of the LAYOUTS."""
    write_hf(folder, seed=seed)
    outer, decoder, tower, projection = LAYOUTS[layout]
    file = folder / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        name = name.replace("embedding_proj_layer.", projection)
        name = name.replace("vlm.", outer, 1).replace("language_model.model.", decoder)
        name = name.replace("vision_tower.", tower)
        if decoder.startswith("model."):
            name = name.replace("multi_modal", "model.multi_modal")
        tensors[name] = tensor
    if has_head:  # an LM head, which nothing uses
        tensors[f"{outer}language_model.lm_head.weight"] = torch.ones(VOCABULARY, 48)
    save_file(tensors, file, metadata={"format": "pt"})
    if outer == "model.":
        config = json.loads((folder / "config.json").read_text())["vlm_config"]
        config["architectures"] = ["ColPali"]
        (folder / "config.json").write_text(json.dumps(config))
    return folder


class EngineModel(torch.nn.Module):
    """colpali-engine's module, as PEFT sees it: PaliGemma in `model`, and the projection."""

    def __init__(self, model: transformers.ColPaliForRetrieval):
        super().__init__()
        self.model = transformers.PaliGemmaForConditionalGeneration(model.config.vlm_config)
        self.model.model = model.vlm
        self.custom_text_proj = model.embedding_proj_layer

    def forward(self, **inputs: Any) -> torch.Tensor:
        hidden = self.model.model(**inputs)[0]
        vectors = self.custom_text_proj(hidden)
        return vectors / vectors.norm(dim=-1, keepdim=True)


def write_adapter(folder: Path, *, published: bool) -> EngineModel:
    """An adapter of PEFT as colpali-engine trains it; the model with it.

    `published`: with the names of the decoder of its time.
    """
    import peft

    targets = "down_proj|gate_proj|up_proj|k_proj|q_proj|v_proj|o_proj"
    pattern = rf"(.*(language_model).*({targets}).*$|.*(custom_text_proj).*$)"
    config = peft.LoraConfig(
        r=4,
        lora_alpha=4,
        init_lora_weights="gaussian",
        target_modules=pattern,
        task_type="FEATURE_EXTRACTION",
    )
    adapted = peft.get_peft_model(EngineModel(reference()), config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    adapted.save_pretrained(folder)
    if published:
        file = folder / "adapter_model.safetensors"
        tensors = {
            name.replace("model.model.language_model.", "model.language_model.model."): tensor
            for name, tensor in load_file(file).items()
        }
        save_file(tensors, file)
    return adapted.merge_and_unload()
