"""PaliGemma's input and output: image slots, prompt tokens, location tokens.

    python examples/lessons/prompt.py [--out DIR]

The built-in model answers a prompt that is assembled here by hand.

B rows · C channels · R resolution · P patches · T prompt tokens · S slots · D width
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import tokenizers
import torch
from PIL import Image
from torch import Tensor

import pgcli
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.attention import AttentionMasks
from pgcli.model.paligemma import PaliGemma

DEMO = Path(pgcli.__file__).parent / "builtin"
IMAGE = DEMO.parents[1] / "examples" / "images" / "dusk.jpg"
PROMPT = "detect star"
LOCATION = re.compile(r"<loc(\d{4})>" * 4 + r" ([^;]+?)(?: ;|$)")


# %%
def pixels(image: Image.Image, resolution: int) -> Tensor:
    """(1, C, R, R): red, green and blue from -1 (black) to 1 (white), squeezed into a square."""
    square = image.convert("RGB").resize((resolution, resolution), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(square) / np.float32(127.5) - 1).permute(2, 0, 1)[None]


def prompt_ids(tokenizer: tokenizers.Tokenizer, prompt: str) -> list[int]:
    """bos, the prompt, and a separate newline token between prompt and answer."""
    bos, newline = tokenizer.token_to_id("<bos>"), tokenizer.token_to_id("\n")
    return [bos, *tokenizer.encode(prompt.strip(), add_special_tokens=False).ids, newline]


def slots(model: PaliGemma, patch_1PD: Tensor, ids: list[int], *, scale_image: bool) -> Tensor:
    """Image slots and text slots (1, S, D). Gemma scales its embeddings by the root of D.

    The projector's outputs already have the decoder's scale, so features are not scaled.
    """
    root = patch_1PD.shape[-1] ** 0.5
    text_1TD = model.decoder.embed_tokens(torch.tensor([ids])) * root
    return torch.cat([patch_1PD * (root if scale_image else 1), text_1TD], dim=1)


# %%
@torch.no_grad()
def answer(model: PaliGemma, patch_1PD: Tensor, ids: list[int], *, scale_image=False) -> list[int]:
    """Greedy tokens up to the stop token, each from a pass over all slots."""
    prefix, tokens = patch_1PD.shape[1] + len(ids), []
    while len(tokens) < 32:
        x_1SD = slots(model, patch_1PD, ids + tokens, scale_image=scale_image)
        slot = torch.arange(x_1SD.shape[1])
        mask = ((slot < prefix) | (slot <= slot[:, None]))[None, None]
        hidden = model.decoder(x_1SD, 1 + slot[None], AttentionMasks(mask, mask), last_only=True)
        tokens.append(int(model.decoder.logits(hidden)[0, 0].argmax()))
        if tokens[-1] in model.config.stop_tokens:
            return tokens[:-1]
    return tokens


def boxes(text: str, width: int, height: int) -> list[tuple[str, float, float, float, float]]:
    """Label, left, top, right, bottom. Tokens come y before x, and 1023 is the whole side."""
    labelled = []
    for match in LOCATION.finditer(text):
        top, left, bottom, right = (int(value) / 1023 for value in match.groups()[:4])
        labelled.append((match[5], left * width, top * height, right * width, bottom * height))
    return labelled


# %%
def main() -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    model = weights.load_paligemma(DEMO, read_config(DEMO), dtype=torch.float32, device="cpu")
    vision, ours = model.config.vision, Tokenizer.from_folder(DEMO)

    side = vision.resolution // vision.patch_size
    print(f"an image of {vision.resolution} pixels is {side} x {side} patches: {side**2} slots")
    red = pixels(Image.new("RGB", (40, 20), "red"), vision.resolution)[0, :, 0, 0]
    print("  a red pixel is", red.tolist(), "in the order red, green, blue")
    for prompt in (PROMPT, PROMPT + "  \n", ""):
        ids = prompt_ids(tokenizer, prompt)
        assert ids == ours.encode_prompt(prompt)
        print(f"  {prompt!r}: image x {side**2}, {[tokenizer.id_to_token(i) for i in ids]}")
    typed = "<loc0001>"
    token, text = prompt_ids(tokenizer, typed), ours.encode_prompt(typed)
    print(f"  a typed {typed} is {len(token) - 2} token, in pgcli text of {len(text) - 2}")

    image = Image.open(IMAGE)
    with torch.no_grad():
        patch_1PD = model.encode(pixels(image, vision.resolution))
    x_1SD = slots(model, patch_1PD, prompt_ids(tokenizer, PROMPT), scale_image=False)
    lengths = x_1SD.norm(dim=-1)[0]
    image_length, text_length = lengths[: side**2].mean(), lengths[side**2 :].mean()
    print(f"mean length of a slot: image {image_length:.0f}, text {text_length:.0f}")
    tokens = answer(model, patch_1PD, prompt_ids(tokenizer, PROMPT))
    text = "".join(map(tokenizer.id_to_token, tokens)).replace("▁", " ").strip()
    row = next(pgcli.load("demo", dtype="float32").detect(IMAGE, "star"))
    assert text == row.answer
    print(f"answer, equal to pgcli's: {text}")
    for (label, *sides), box in zip(boxes(text, *image.size), row.boxes, strict=True):
        corners = [box.xmin, box.ymin, box.xmax, box.ymax]  # with six digits, as in a result file
        torch.testing.assert_close(sides, corners, rtol=1e-5, atol=0.0)
        print(f"  {label}: left, top, right, bottom", [round(value) for value in sides])
    wrong = answer(model, patch_1PD, prompt_ids(tokenizer, PROMPT), scale_image=True)
    print("  with image features scaled as text, the answer is another:", wrong != tokens)
    assert wrong != tokens


# %%
@torch.no_grad()
def figure():
    """The lengths of the slots, and the boxes of an answer with y first and with x first."""
    from matplotlib import pyplot

    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    model = weights.load_paligemma(DEMO, read_config(DEMO), dtype=torch.float32, device="cpu")
    image, ids = Image.open(IMAGE), prompt_ids(tokenizer, PROMPT)
    patch_1PD = model.encode(pixels(image, model.config.vision.resolution))
    length_S = slots(model, patch_1PD, ids, scale_image=False).norm(dim=-1)[0]
    figure, (first, *panels) = pyplot.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
    patches = patch_1PD.shape[1]
    first.bar(range(patches), length_S[:patches], label="image slots, as projected")
    text = range(patches, len(length_S))
    first.bar(text, length_S[patches:], label=f"text slots, times the root of {patch_1PD.shape[2]}")
    first.set(title="what Gemma reads", xlabel="slot", ylabel="length of the vector", ylim=(0, 45))
    first.legend(loc="upper left")
    tokens = answer(model, patch_1PD, ids)
    answered = "".join(map(tokenizer.id_to_token, tokens)).replace("▁", " ").strip()
    titles = ("y first", "x first: wrong")
    swapped = re.sub(r"(<loc\d+>)(<loc\d+>)", r"\2\1", answered)
    for axes, title, text in zip(panels, titles, (answered, swapped), strict=True):
        axes.imshow(image)
        for _, x, top, right, bottom in boxes(text, *image.size):
            corner, sides = (x, top), (right - x, bottom - top)
            axes.add_patch(pyplot.Rectangle(corner, *sides, fill=False, color="red", linewidth=2))
        axes.set(title=title, xlabel="x in pixels", ylabel="y in pixels")
    return figure


# %%
if __name__ == "__main__":
    main()
    if "--out" in sys.argv:
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        figure().savefig(folder / "prompt.png", dpi=90)
