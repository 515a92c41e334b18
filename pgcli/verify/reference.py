"""Wraps transformers, the reference of `verify` and `bench`, and reads or draws the images of both.

transformers is imported on first use, and by no command that answers.

B rows · C channels · R resolution · S slots of image and prompt
"""

from __future__ import annotations

import gc
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from pgcli.engine.tokenizer import left_pad
from pgcli.errors import Difference, NoInputError, UsageError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.model.config import PaliGemmaConfig
from pgcli.records import DecodedImage, Item
from pgcli.text import first_line

BEGIN_OF_IMAGE = "<start_of_image>"
#: No downloads, and no code from the checkpoint, which transformers would offer to run.
SAFE_OPTIONS = {"local_files_only": True, "trust_remote_code": False}
MAX_IMAGES = 8  # images that `verify` compares, at most
SIZES = ((320, 240), (200, 300), (448, 448))  # landscape, portrait, square


def import_transformers() -> ModuleType:
    """transformers; UsageError with the command that installs it if it is missing."""
    try:
        import transformers
    except ImportError as missing:
        raise UsageError(
            f"this command needs transformers, which cannot be imported: {missing}",
            hint="python -m pip install 'transformers>=5.23'",
        ) from missing
    module: ModuleType = transformers
    return module


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress transformers' progress bars and warnings within the block."""
    settings = import_transformers().utils.logging
    verbosity, has_bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    disabled = logging.root.manager.disable
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        settings.set_verbosity(verbosity)
        if has_bars:
            settings.enable_progress_bar()


def load_reference(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    name: str = "PaliGemmaForConditionalGeneration",
) -> Any:
    """transformers' model with its default attention, sdpa if it is supported.

    Raises Difference if transformers cannot load a checkpoint that this code loads.
    """
    try:
        model, info = getattr(import_transformers(), name).from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **SAFE_OPTIONS
        )
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
        reason = first_line(error)
        raise Difference(
            f"different: transformers cannot read this checkpoint: {reason}",
            hint="pgcli can; if transformers is old, try a newer version",
        ) from error
    if missing := sorted(map(str, info["missing_keys"])):  # transformers initializes them randomly
        raise Difference(
            f"different: transformers does not find the weight {missing[0]} in the checkpoint",
            hint=f"pgcli does; the first of {len(missing)} such weights",
        )
    return model.to(device).eval().requires_grad_(False)


def class_name(config: PaliGemmaConfig) -> str:
    """The class of transformers for a model that generates text."""
    name = "PaliGemma" if config.image_marks is None else "Gemma3"
    return f"{name}ForConditionalGeneration"


def free_memory() -> None:
    """Free the memory of deleted models before the next is loaded."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def generate_greedily(
    model: Any,
    pixels_BCRR: Tensor,
    prompts: Sequence[Sequence[int]],
    *,
    head: Sequence[int] = (),
    image_token: int,
    image_slots: int,
    logits_processor: Sequence[Any] = (),
    **settings: Any,
) -> tuple[Any, int]:
    """Generate greedily; return transformers' result, and the number of slots before the answer.

    Prompts follow the image's slots, and `head` precedes them; rows are left-padded. `settings` are
    fields of GenerationConfig. The checkpoint's own settings, of which loading it warns, are
    ignored, as pgcli ignores them.
    """
    image = [image_token] * image_slots
    token_BS, is_real_BS = left_pad([[*head, *image, *ids] for ids in prompts])
    is_real = torch.ones_like(token_BS) if is_real_BS is None else is_real_BS.long()
    device = model.lm_head.weight.device
    model.generation_config = import_transformers().GenerationConfig()
    generated = model.generate(
        input_ids=token_BS.to(device),
        attention_mask=is_real.to(device),
        token_type_ids=token_types(model, token_BS).to(device),
        pixel_values=pixels_BCRR,
        logits_processor=[*logits_processor],
        do_sample=False,
        pad_token_id=0,
        **settings,
    )
    return generated, token_BS.shape[1]


def token_types(model: Any, token_BS: Tensor) -> Tensor:
    """The token types that make transformers attend as in training.

    PaliGemma's zeros mark a prompt that sees all of itself; Gemma 3's ones the slots of an image.
    Without them prompts and images are causal.
    """
    if model.config.model_type == "paligemma":
        return torch.zeros_like(token_BS)
    image_token: int = model.config.image_token_index
    return (token_BS == image_token).long()


def conversation_ids(folder: Path, prompts: Sequence[str], image_token: int) -> list[list[int]]:
    """Each prompt's ids, with one image token, by transformers' tokenizer and chat template.

    Without a template the prompt follows the image.
    """
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(folder, **SAFE_OPTIONS)
    image = tokenizer.convert_ids_to_tokens(image_token)
    block = f"\n\n{BEGIN_OF_IMAGE}{image}<end_of_image>\n\n"
    texts = []
    for prompt in prompts:
        text = f"<bos>{BEGIN_OF_IMAGE}{prompt}"
        if tokenizer.chat_template is not None:
            content = [{"type": "image"}, {"type": "text", "text": prompt}]
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
        texts.append(text.replace(BEGIN_OF_IMAGE, block, 1))
    return [tokenizer(text, add_special_tokens=False).input_ids for text in texts]


def prompt_ids(folder: Path, prompts: tuple[str, ...]) -> list[list[int]]:
    """Each prompt's ids, from the first token to the newline, by transformers' tokenizer."""
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(folder, **SAFE_OPTIONS)
    return [tokenizer(f"<bos>{prompt}\n", add_special_tokens=False).input_ids for prompt in prompts]


def text_ids(folder: Path, texts: Sequence[str], length: int) -> list[list[int]]:
    """Each text's ids by transformers' tokenizer, padded on the right to the full length."""
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(folder, **SAFE_OPTIONS)
    ids: list[list[int]] = tokenizer(
        [*texts], padding="max_length", padding_side="right", max_length=length, truncation=True
    ).input_ids
    return ids


def processed_pixels(folder: Path, image: Image.Image) -> Tensor:
    """An image (1, C, R, R) as transformers prepares it with Pillow, without torchvision."""
    processor = import_transformers().AutoImageProcessor.from_pretrained(
        folder, backend="pil", **SAFE_OPTIONS
    )
    pixels: Tensor = processor(image, return_tensors="pt")["pixel_values"]
    return pixels


def default_images() -> list[Item]:
    """A few small images as the bytes of PNG files."""
    return [*islice(generate_images(), len(SIZES))]


def generate_images() -> Iterator[Item]:
    """The images of `default_images`, then an endless stream of others in the same sizes."""
    for number in count():
        width, height = SIZES[number % len(SIZES)]
        again = f" ({number // len(SIZES)})" if number >= len(SIZES) else ""
        name = f"drawing of {width} x {height}{again}"
        yield Item(number, name, name, data=_png(number, width, height))


def readable_images(items: Sequence[Item], spec: ImageSpec) -> list[DecodedImage]:
    """The first readable images. Raises NoInputError without any."""
    images = [decode(item, spec, ImageLimits()) for item in items[:MAX_IMAGES]]
    readable = [image for image in images if image.fault is None]
    if not readable:
        fault = images[0].fault if images else None
        raise NoInputError(
            "no image to compare with" + (f": {fault.message}" if fault else ""),
            hint="drop --source to compare with generated images",
        )
    return readable


def _png(number: int, width: int, height: int) -> bytes:
    """A gradient background, so that neighbouring patches differ, and three shapes on it."""
    horizontal, vertical = Image.linear_gradient("L").rotate(90), Image.linear_gradient("L")
    background = Image.merge("RGB", (horizontal, vertical, Image.radial_gradient("L")))
    image = background.rotate(90 * number).resize((width, height))
    draw = ImageDraw.Draw(image)
    side = min(width, height) // 4
    draw.ellipse((side, side, 2 * side, 2 * side), fill="red")
    draw.rectangle((2 * side, side // 2, 3 * side, 2 * side), fill="blue")
    draw.polygon([(side, 3 * side), (2 * side, 3 * side), (side, 2 * side)], fill="yellow")
    if number >= len(SIZES):
        rng = Random(number)
        left, top = rng.randrange(width - side), rng.randrange(height - side)
        colour = tuple(rng.randrange(256) for _ in range(3))
        draw.ellipse((left, top, left + side, top + side), fill=colour)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
