"""PaliGemma in one program: an image and prompts go in, answers come out.

    python examples/lessons/paligemma.py
    python examples/lessons/paligemma.py --image cat.jpg --prompt "detect cat" --model FOLDER

Read it from top to bottom, in the order of the computation:

    image  -> pixels -> SigLIP -> projector -> P image slots ┐
    prompt -> tokens -> embedding * sqrt(D) -> T text slots  ┴ Gemma -> logits -> next token
                                                              ▲  │                    │
                                                        KV cache └<──── one new slot ─┘

All arithmetic is here; pgcli finds and reads the checkpoint's files. PaliGemma 3b has a `vision` of
width 1152, depth 27, mlp_dim 4304, 16 heads and 256 patches of 14 x 14 pixels, and a `decoder` of
width 2048, depth 18, mlp_dim 16,384, 8 query heads of 256 values and 1 key/value head.

A tensor's suffix names its axes: B rows (an image and its prompt) · C channels · R resolution ·
P patches · T prompt tokens · L new slots of this pass · S slots so far · D width · N query heads ·
K key/value heads · H head size · h pairs of values, H / 2 · V vocabulary
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np
import torch
import typer
from PIL import Image, ImageOps
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.families.paligemma import NAMES
from pgcli.checkpoints.find import BUILTIN, find
from pgcli.checkpoints.safetensors_files import map_tensor
from pgcli.checkpoints.tokenizer import open_tokenizer
from pgcli.checkpoints.weights import find_tensors
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig

IMAGE = BUILTIN.parents[1] / "examples" / "images" / "dusk.jpg"
PROMPTS, MAX_NEW_TOKENS = ["caption en", "detect star"], 128


# %% Input: pixels and tokens
def read_pixels(image: Path, resolution: int) -> Tensor:
    """The image (C, R, R), squeezed into a square: red, green and blue from -1 to 1."""
    upright = ImageOps.exif_transpose(Image.open(image)).convert("RGB")
    square = upright.resize((resolution, resolution), Image.Resampling.BICUBIC)
    pixels_RRC = torch.from_numpy(np.array(square)) / 255
    return ((pixels_RRC - 0.5) / 0.5).permute(2, 0, 1)  # as SigLIP was trained


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> Tensor:
    """The ids (T,) of <bos>, the prompt, and the newline that separates it from the answer."""
    ids = tokenizer.encode(prompt.strip(), add_special_tokens=False).ids
    newline = tokenizer.token_to_id("\n")  # as text it could merge with the end of the prompt
    return torch.tensor([tokenizer.token_to_id("<bos>"), *ids, newline])


# %% What both towers share
def attend(query_BNLH: Tensor, key_BNSH: Tensor, value_BNSH: Tensor, mask_B11S=None) -> Tensor:
    """For each query the mean of the values, weighted by softmax(q k / sqrt(H)): (B, L, N * H).

    The product of two vectors of H values has variance H. Divided by sqrt(H) it has variance 1, and
    the softmax keeps its gradient. H is the size of a head, not the width.
    """
    score_BNLS = query_BNLH @ key_BNSH.transpose(2, 3) / query_BNLH.shape[-1] ** 0.5
    if mask_B11S is not None:
        score_BNLS = score_BNLS.masked_fill(~mask_B11S, -torch.inf)  # a weight of 0
    # without the transpose, the values of different slots would be mixed up
    return (score_BNLS.softmax(-1) @ value_BNSH).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Grouped queries: N / K adjacent query heads share a key/value head, for a smaller cache.

    In SigLIP N = K, and every patch attends to every patch, because an image has no order.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, *, bias: bool):
        super().__init__()
        self.head_dim, self.group = head_dim, heads // kv_heads
        self.q_proj = nn.Linear(width, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(width, kv_heads * head_dim, bias=bias)
        self.out_proj = nn.Linear(heads * head_dim, width, bias=bias)  # mixes the heads

    def forward(self, x_BLD: Tensor, turn=None, mask_B11S=None, cache=None) -> Tensor:
        # (B, L, N * H) as (B, N, L, H): products treat heads like rows of a batch
        query_BNLH, key_BKSH, value_BKSH = (
            linear(x_BLD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        if turn is not None:  # by position; values have none
            query_BNLH, key_BKSH = turn(query_BNLH), turn(key_BKSH)
        if cache is not None:  # keys and values of earlier slots never change, so they are kept
            new = torch.stack([key_BKSH, value_BKSH])
            cache[self] = torch.cat([cache[self], new], dim=3) if self in cache else new
            key_BKSH, value_BKSH = cache[self]
        key_BNSH, value_BNSH = (x.repeat_interleave(self.group, 1) for x in (key_BKSH, value_BKSH))
        return self.out_proj(attend(query_BNLH, key_BNSH, value_BNSH, mask_B11S))


class Layer(nn.Module):
    """Attention mixes slots, the MLP works on each one. Both read a normed x and add to x."""

    def __init__(self, norm: type, attention: type, mlp: type):
        super().__init__()
        self.norm1, self.self_attn, self.norm2, self.mlp = norm(), attention(), norm(), mlp()

    def forward(self, x_BLD: Tensor, *context: object) -> Tensor:
        x_BLD = x_BLD + self.self_attn(self.norm1(x_BLD), *context)
        return x_BLD + self.mlp(self.norm2(x_BLD))


# %% SigLIP: a Vision Transformer without a class token
class VisionMLP(nn.Sequential):
    """Wider, GELU in its tanh approximation, and back."""

    def __init__(self, width: int, mlp_dim: int):
        fc1, fc2 = nn.Linear(width, mlp_dim), nn.Linear(mlp_dim, width)
        super().__init__(OrderedDict(fc1=fc1, gelu=nn.GELU("tanh"), fc2=fc2))


class SigLIP(nn.Module):
    """Images to one vector for each patch (B, P, D). The decoder reads them all; none is pooled."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        width, heads, size = config.width, config.num_heads, config.patch_size
        # kernel and stride are one patch: a matrix product for each patch, without overlap
        self.patch_embedding = nn.Conv2d(3, width, kernel_size=size, stride=size)
        # learned; without positions, the patches would be an unordered set
        self.position_embedding = nn.Embedding(config.num_patches, width)
        norm = partial(nn.LayerNorm, width, config.norm_eps)
        attention = partial(Attention, width, heads, heads, width // heads, bias=True)
        mlp = partial(VisionMLP, width, config.mlp_dim)
        self.layers = nn.Sequential(*(Layer(norm, attention, mlp) for _ in range(config.depth)))
        self.post_layernorm = norm()

    def forward(self, pixels_BCRR: Tensor) -> Tensor:
        patch_BPD = self.patch_embedding(pixels_BCRR).flatten(2).transpose(1, 2)  # row by row
        return self.post_layernorm(self.layers(patch_BPD + self.position_embedding.weight))


# %% Gemma: rotary positions, grouped queries, RMSNorm and GeGLU
def rotate(x_BNLH: Tensor, position_BL: Tensor, theta: float) -> Tensor:
    """Turn each pair of values, i and i + H / 2, by position times a frequency from 1 to 1 / theta.

    So the product of a query and a key depends on the distance of their slots alone.
    """
    half = x_BNLH.shape[-1] // 2
    frequency_h = theta ** (-torch.arange(half, device=x_BNLH.device) / half)
    angle_B1Lh = position_BL[:, None, :, None] * frequency_h
    cos, sin = angle_B1Lh.cos(), angle_B1Lh.sin()
    first, second = x_BNLH.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class RMSNorm(nn.Module):
    """Divides by the root of the mean square. Gemma stores w, near 0, and multiplies by 1 + w."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class GeGLU(nn.Module):
    """Gemma's MLP: GELU of one product is a gate for the other."""

    def __init__(self, width: int, mlp_dim: int):
        super().__init__()
        self.gate_proj = nn.Linear(width, mlp_dim, bias=False)
        self.up_proj = nn.Linear(width, mlp_dim, bias=False)
        self.down_proj = nn.Linear(mlp_dim, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Gemma(nn.Module):
    """Slots in, logits of the next token out. Reading a prompt and a step are the same call."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        width, heads = config.width, (config.num_heads, config.num_kv_heads, config.head_dim)
        self.theta, self.embed_tokens = config.rope_theta, nn.Embedding(config.vocab_size, width)
        norm = partial(RMSNorm, width, config.norm_eps)
        attention = partial(Attention, width, *heads, bias=False)
        mlp = partial(GeGLU, width, config.mlp_dim)
        self.layers = nn.ModuleList(Layer(norm, attention, mlp) for _ in range(config.depth))
        self.norm = norm()

    def embed(self, token_BT: Tensor) -> Tensor:
        """The vectors of tokens, times sqrt(D) as in Gemma's training. Image slots are not."""
        return self.embed_tokens(token_BT) * self.embed_tokens.embedding_dim**0.5

    def forward(self, x_BLD: Tensor, is_real_BS: Tensor, cache: dict[nn.Module, Tensor]) -> Tensor:
        """Logits (B, V) after the last of the new slots; `is_real_BS` is False on padding.

        Positions count real slots. The mask hides padding only: image and prompt attend to each
        other in both directions, and an answer's token comes alone, after all that it may see.
        """
        position_BL = is_real_BS.cumsum(1)[:, -x_BLD.shape[1] :]
        turn = partial(rotate, position_BL=position_BL, theta=self.theta)
        for layer in self.layers:
            x_BLD = layer(x_BLD, turn, is_real_BS[:, None, None], cache)
        return self.norm(x_BLD[:, -1]) @ self.embed_tokens.weight.T  # the head is the embedding


# %% PaliGemma: one linear layer joins the towers
class PaliGemma(nn.Module):
    def __init__(self, config: PaliGemmaConfig):
        super().__init__()
        self.config, self.vision = config, SigLIP(config.vision)
        self.decoder = Gemma(config.decoder)
        self.projector = nn.Linear(config.vision.width, config.decoder.width)


#: Parts of the names in checkpoints, and of the names above.
NAMED = {".embeddings.": ".", ".layer_norm": ".norm", ".input_layernorm.": ".norm1."}
NAMED |= {".post_attention_layernorm.": ".norm2.", ".o_proj.": ".out_proj."}


def load(name: str) -> tuple[PaliGemma, Tokenizer]:
    """A checkpoint by its folder, its name on the Hub, or `demo`, in float32."""
    weights, folder = {}, find(name).folder
    with torch.device("meta"):  # shapes without memory
        model = PaliGemma(read_config(folder))
    for key, tensor in find_tensors(folder, NAMES).items():
        for old, new in NAMED.items():
            key = key.replace(old, new)
        weights[key] = map_tensor(tensor).float()
    model.load_state_dict(weights, assign=True)  # raises an error for any other name or shape
    return model.eval(), open_tokenizer(folder)


# %% Output: the next token, again and again
def choose(logits_BV: Tensor, temperature: float, top_p: float) -> Tensor:
    """The most likely token (B,), or one drawn from the likeliest of total probability `top_p`."""
    if temperature == 0:
        return logits_BV.argmax(-1)
    probability_BV, token_BV = (logits_BV / temperature).softmax(-1).sort(descending=True)
    before_BV = probability_BV.cumsum(-1) - probability_BV  # of all likelier tokens
    before_BV[:, 0] = -1  # keeps the first; 1e-6 because float32 rounds 0.5 + 0.2 below 0.7
    nucleus_BV = probability_BV.masked_fill(before_BV >= top_p - 1e-6, 0)
    return token_BV.gather(1, torch.multinomial(nucleus_BV, 1))[:, 0]  # divides by the sum


@torch.inference_mode()
def generate(
    model: PaliGemma, pixels_BCRR: Tensor, prompts: list[Tensor], temperature=0.0, top_p=1.0
) -> list[list[int]]:
    """The tokens of each row's answer, without the stop token.

    Padding goes between image and prompt, so that all rows end in the same slot:

        image image image image . . <bos> caption \\n
        image image image image <bos> detect star \\n
    """
    padded_BT = pad_sequence(prompts, batch_first=True, padding_value=-1, padding_side="left")
    patch_BPD = model.projector(model.vision(pixels_BCRR))  # once, and not again in each step
    x_BLD = torch.cat([patch_BPD, model.decoder.embed(padded_BT.clamp(min=0))], dim=1)
    is_real_BS = F.pad(padded_BT >= 0, (patch_BPD.shape[1], 0), value=True)
    cache, answers, unfinished = {}, [[] for _ in prompts], {*range(len(prompts))}
    while unfinished and max(map(len, answers)) < MAX_NEW_TOKENS:
        logits_BV = model.decoder(x_BLD, is_real_BS, cache)
        token_B = choose(logits_BV[:, : model.config.image_token_id], temperature, top_p)
        unfinished -= {row for row in unfinished if token_B[row] in model.config.stop_tokens}
        for row in unfinished:
            answers[row].append(int(token_B[row]))
        x_BLD = model.decoder.embed(token_B[:, None])
        is_real_BS = F.pad(is_real_BS, (0, 1), value=True)
    return answers


def main(
    image: Path = IMAGE, prompt: list[str] = PROMPTS, model="demo", temperature=0.0, top_p=1.0
):
    """Answer prompts about an image."""
    paligemma, tokenizer = load(model)
    pixels_CRR = read_pixels(image, paligemma.config.vision.resolution)
    pixels_BCRR = pixels_CRR.expand(len(prompt), -1, -1, -1)
    rows = [prompt_ids(tokenizer, text) for text in prompt]
    answers = generate(paligemma, pixels_BCRR, rows, temperature, top_p)
    for text, ids in zip(prompt, answers, strict=True):
        print(f"{text}: {tokenizer.decode(ids, skip_special_tokens=False)}")


# %%
if __name__ == "__main__":
    typer.run(main)
