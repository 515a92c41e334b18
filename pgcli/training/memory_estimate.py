"""The memory that training PaliGemma takes, estimated before it begins.

The sizes of activations are those of the tensors that the layers of `pgcli.model` save for the
backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from pgcli.checkpoints.weights import meta_model
from pgcli.errors import NoUsableDevice
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.training.answer_loss import CHUNK_BYTES
from pgcli.training.answer_settings import AnswerSettings
from pgcli.training.lora import add_lora
from pgcli.training.start_answers import train_all

FLOAT32 = 4
MOMENTS = 2  # of Adam for each trained weight
LOGITS = 3  # of a chunk: they, their softmax and their gradient
#: Of the free memory; the rest is for the gaps of allocators.
SHARE_OF_FREE = 0.85
#: Tokens computed at once: more are not faster. On a CPU their number does not depend on the free
#: memory, so that a resumed run adds up the same parts.
CPU_TOKENS, GPU_TOKENS = 2048, 32_768


@dataclass(frozen=True, slots=True)
class TrainingDtypes:
    """The sizes of a weight at rest, of a value in products, and of one between layers."""

    weight: int
    product: int
    residual: int

    @classmethod
    def of(cls, held: torch.dtype, products: torch.dtype) -> TrainingDtypes:
        """Those of weights of one dtype, and of products that autocast may convert to another."""
        return cls(held.itemsize, min(held.itemsize, products.itemsize), held.itemsize)


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """The bytes of a run, and of each row that is computed at once.

    A row has `row` bytes, or `row_checkpointed` with gradient checkpointing, and `row_logits`, of
    which no more than those of a chunk are held. `trained` and `frozen` are numbers of weights.
    """

    trained: int
    frozen: int
    weights: int
    gradients: int
    moments: int
    row_logits: int
    row: int
    row_checkpointed: int

    @property
    def fixed(self) -> int:
        """The bytes that do not depend on the rows."""
        return self.weights + self.gradients + self.moments

    def logits(self, rows: int) -> int:
        """The bytes of the logits of a chunk, their softmax and their gradient."""
        return LOGITS * min(CHUNK_BYTES, rows * self.row_logits)

    def total(self, rows: int, *, checkpointing: bool) -> int:
        """The bytes with so many rows at once."""
        row = self.row_checkpointed if checkpointing else self.row
        return self.fixed + self.logits(rows) + rows * row


def estimate_memory(
    config: PaliGemmaConfig,
    settings: AnswerSettings,
    dtypes: TrainingDtypes,
    text_tokens: int,
    shards: int = 1,
) -> TrainingMemory:
    """The memory of training on rows of so many text tokens.

    Weights, gradients and moments are divided over `shards` processes.
    """
    model = meta_model(config)
    if settings.method == "full":
        train_all(model, settings)
    else:
        add_lora(model, settings.lora, seed=0)
    trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
    row, row_checkpointed = row_bytes(config, settings, dtypes, text_tokens)
    return TrainingMemory(
        trained=trained,
        frozen=sum(one.numel() for one in model.parameters()) - trained,
        weights=weight_bytes(model, settings, dtypes, shards),
        gradients=FLOAT32 * trained // shards,
        moments=MOMENTS * FLOAT32 * trained // shards,
        row_logits=FLOAT32 * text_tokens * config.decoder.vocab_size,
        row=row,
        row_checkpointed=row_checkpointed,
    )


def weight_bytes(
    model: PaliGemma, settings: AnswerSettings, dtypes: TrainingDtypes, shards: int
) -> int:
    """The bytes of the weights in a process, with copies of them in other dtypes."""
    trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
    frozen = sum(one.numel() for one in model.parameters()) - trained
    held = (FLOAT32 * trained + dtypes.weight * frozen) // shards
    if settings.quantize == "int8":
        layers = model.decoder.layers.parameters()
        matrices = sum(one.numel() for one in layers if one.ndim == 2 and not one.requires_grad)
        held -= (dtypes.weight - 1) * matrices
    if shards > 1:
        held += gathered_bytes(model)
    is_computed_twice = shards > 1 and settings.gradient_checkpointing == "on"
    if dtypes.product < dtypes.weight and not is_computed_twice:
        # autocast's copies, which the backward pass needs if activations are not computed twice
        held += dtypes.product * (trained + frozen)
    return held


def row_bytes(
    config: PaliGemmaConfig, settings: AnswerSettings, dtypes: TrainingDtypes, text_tokens: int
) -> tuple[int, int]:
    """The bytes of a row's activations, and those with gradient checkpointing."""
    slots = config.image_tokens + text_tokens
    is_full = settings.method == "full" and "decoder" not in settings.freeze
    layer = slots * decoder_layer_bytes(config.decoder, dtypes, slots, is_full=is_full)
    if settings.method == "lora" and dtypes.product < FLOAT32:
        layer += slots * adapter_input_bytes(config.decoder, settings.lora.targets)
    between = slots * config.decoder.width * dtypes.residual
    decoder = config.decoder.depth
    row = decoder * layer + 3 * between
    checkpointed = (decoder + 3) * between + layer
    if settings.trains_vision:
        patches, vision = config.image_tokens, config.vision
        layer = patches * vision_layer_bytes(vision, dtypes)
        row += vision.depth * layer
        checkpointed += vision.depth * patches * vision.width * dtypes.residual + layer
    return row, checkpointed


def gathered_bytes(model: nn.Module) -> int:
    """The bytes of the weights that FSDP2 gathers at a time, and of their gradients.

    These are two layers, of which one is gathered ahead, and what is in no layer: the embedding.
    """
    layers = [layer for one in model.modules() if isinstance(one, nn.ModuleList) for layer in one]
    sizes = [sum(weight.numel() for weight in layer.parameters()) for layer in layers]
    rest = sum(weight.numel() for weight in model.parameters()) - sum(sizes)
    return 2 * FLOAT32 * (rest + 2 * max(sizes))


def decoder_layer_bytes(
    config: DecoderConfig, dtypes: TrainingDtypes, slots: int, *, is_full: bool
) -> int:
    """The bytes that a layer saves of a slot; inputs of products only where weights are trained."""
    width, mlp_dim = config.width, config.mlp_dim
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    norms = (4 if config.post_norms else 2) * FLOAT32 * width * (2 if is_full else 1)
    if config.attn_softcap is None:
        scores = config.num_heads // config.num_kv_heads * slots * dtypes.product  # the mask
    else:
        scores = 3 * FLOAT32 * config.num_heads * slots
    values = 4 * query + 3 * key + 3 * mlp_dim
    if is_full:
        values += 2 * width + query + mlp_dim
    return norms + scores + dtypes.product * values


def adapter_input_bytes(config: DecoderConfig, targets: str) -> int:
    """The bytes of a slot's inputs of adapters, which are converted to float32 for each layer."""
    query = config.num_heads * config.head_dim
    values = config.width + query
    if targets.startswith("all"):
        values += config.width + config.mlp_dim
    return FLOAT32 * values


def vision_layer_bytes(config: VisionConfig, dtypes: TrainingDtypes) -> int:
    """The bytes that a layer of the vision tower saves of a patch."""
    norms = 2 * (dtypes.residual + dtypes.product) * config.width
    return norms + dtypes.product * (6 * config.width + 2 * config.mlp_dim)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How many rows are computed at once, and whether activations are computed twice."""

    memory: TrainingMemory
    micro_batch: int
    checkpointing: bool

    @property
    def total(self) -> int:
        return self.memory.total(self.micro_batch, checkpointing=self.checkpointing)

    @property
    def activations(self) -> int:
        """The bytes of the rows that are computed at once, without logits."""
        return self.total - self.memory.fixed - self.memory.logits(self.micro_batch)

    def check(self, device: torch.device, free: int, hint: str) -> None:
        """Raise NoUsableDevice if it does not fit into free memory."""
        if self.total > free:
            rows = f"{self.micro_batch:,} row{'s' * (self.micro_batch != 1)}"
            raise NoUsableDevice(
                f"training with {rows} at once takes about {self.total / 1e9:.1f} GB, and {device} "
                f"has {free / 1e9:.1f} GB free",
                hint=hint,
            )


def plan_memory(
    memory: TrainingMemory,
    settings: AnswerSettings,
    *,
    batch: int,
    slots: int,
    device: torch.device,
    free: int,
    micro_batch: int | None = None,
) -> MemoryPlan:
    """The rows at once, `micro_batch` if it is given, and whether activations are computed twice.

    Activations are kept where as many rows as are fast fit with them.
    """
    is_cpu = device.type == "cpu"
    fast = min(batch, max(1, (CPU_TOKENS if is_cpu else GPU_TOKENS) // slots))
    wanted = micro_batch or fast
    left = SHARE_OF_FREE * free - memory.fixed - memory.logits(wanted)
    if settings.gradient_checkpointing == "auto":
        checkpointing = wanted * memory.row > left
    else:
        checkpointing = settings.gradient_checkpointing == "on"
    if micro_batch is None and not is_cpu:
        fitting = int(left // (memory.row_checkpointed if checkpointing else memory.row))
        wanted = max(1, min(fast, fitting))
    return MemoryPlan(memory, wanted, checkpointing)
