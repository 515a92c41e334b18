"""How much memory a model needs: its weights, and each row of a batch on top."""

from __future__ import annotations

from pgcli.model.attention import SCORES
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig

TEXT_SLOTS = 320  # a prompt of 64 tokens and an answer of 256: what a row is reckoned with
MOST_ROWS = {"cpu": 64, "mps": 64, "cuda": 256}
LARGE_PARAMETERS = 10**9
BLOCK_BYTES = 8 * 4 * SCORES  # a block of softly bounded scores, float32, in eight versions
ROWS_OF_LARGE_ON_CPU = 16  # beyond this a large model gains nothing there, and the first row waits
SHARE_OF_FREE = 0.6


def parameters(config: PaliGemmaConfig) -> int:
    """How many weights the model has, a shared head counted once."""
    vision, decoder = config.vision, config.decoder
    projector = (vision.width + 1) * decoder.width
    head = 0 if config.tied else decoder.vocab_size * decoder.width
    return _vision_parameters(vision) + projector + _decoder_parameters(decoder) + head


def row_bytes(config: PaliGemmaConfig, itemsize: int) -> int:
    """What one more row of a batch takes at most: its slots' memory, and a pass's activations."""
    vision, decoder = config.vision, config.decoder
    slots = config.image_tokens + TEXT_SLOTS
    cache = cache_bytes(config, itemsize) * slots
    looking = vision.num_patches * (8 * vision.width + 2 * vision.mlp_dim) * itemsize
    reading = slots * (8 * decoder.width + 4 * decoder.mlp_dim) * itemsize
    moving = cache  # where rows grow past their slots, all are laid into larger memory
    scores = 3 * 4 * decoder.vocab_size  # float32 logits and two copies
    return cache + max(looking, reading, moving) + scores


def needed_bytes(config: PaliGemmaConfig, itemsize: int, rows: int) -> int:
    """The weights and a batch; Python and PyTorch themselves, some 0.3 GB, are not reckoned."""
    block = 0 if config.decoder.attn_softcap is None else BLOCK_BYTES
    return parameters(config) * itemsize + block + rows * row_bytes(config, itemsize)


def cache_bytes(config: PaliGemmaConfig, itemsize: int) -> int:
    """What the decoder remembers of one slot: its keys and values in every layer."""
    decoder = config.decoder
    return 2 * decoder.depth * decoder.num_kv_heads * decoder.head_dim * itemsize


def largest_batch(config: PaliGemmaConfig, *, itemsize: int, free: int) -> int:
    """How many rows fit into free memory beside the weights; 0 where not even one does."""
    left = free - needed_bytes(config, itemsize, 0)
    return max(0, left // row_bytes(config, itemsize))


def batch_size(config: PaliGemmaConfig, *, itemsize: int, device: str, free: int) -> int:
    """Rows that fit into the share of the free memory left for them, within what pays."""
    most = MOST_ROWS[device]
    if device == "cpu" and parameters(config) > LARGE_PARAMETERS:
        most = ROWS_OF_LARGE_ON_CPU
    fitting = int(SHARE_OF_FREE * free / row_bytes(config, itemsize))
    return max(1, min(most, fitting))


def _vision_parameters(config: VisionConfig) -> int:
    width, mlp_dim = config.width, config.mlp_dim
    attention = 4 * (width + 1) * width
    mlp = (width + 1) * mlp_dim + (mlp_dim + 1) * width
    embeddings = (3 * config.patch_size**2 + 1 + config.num_patches) * width
    return config.depth * (attention + mlp + 4 * width) + embeddings + 2 * width


def _decoder_parameters(config: DecoderConfig) -> int:
    width, heads = config.width, config.num_heads + config.num_kv_heads
    attention = 2 * heads * config.head_dim * width
    norms = 4 if config.post_norms else 2
    layer = attention + 3 * width * config.mlp_dim + norms * width
    return config.depth * layer + (config.vocab_size + 1) * width
