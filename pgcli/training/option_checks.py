"""Checks that training options go together, before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING

from pgcli.errors import UsageError
from pgcli.run.request.applies import is_on_hub

if TYPE_CHECKING:
    from pgcli.training.options import TrainOptions

PARTS = ("vision", "projector", "decoder")  # of PaliGemma, that can be frozen
LORA, FULL = "--method lora", "--method full"
CONTRASTIVE, CLASSIFY = "--task contrastive", "--task classify"
#: The tasks, or PaliGemma's methods, that an option applies to; other options apply to all.
SCOPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("init", "probe"), (CONTRASTIVE, CLASSIFY)),
        **dict.fromkeys(("loss", "text_column"), (CONTRASTIVE,)),
        "label_column": (CLASSIFY,),
        **dict.fromkeys(("prompt", "prompt_column", "answer_column"), (LORA, FULL)),
        **dict.fromkeys(("method", "dropout"), (LORA, FULL)),
        **dict.fromkeys(("rank", "alpha", "targets", "quantize", "merge", "adapter"), (LORA,)),
        "freeze": (FULL,),
    }
)

#: Options without an effect on other tasks, where they are ignored. Others would change what is
#: learned, and are refused there.
IGNORED = frozenset("loss method dropout rank alpha targets quantize merge".split())


def inapplicable(options: TrainOptions) -> dict[str, str]:
    """Why each option that is set does not apply to the task, by the name of the option."""
    reasons = {}
    for field in fields(options):
        scopes = SCOPES.get(field.name, (options.scope,))
        if options.scope in scopes or getattr(options, field.name) == field.default:
            continue
        tasks = [f"<{scope}>" for scope in scopes if scope.startswith("--task")]
        names = " and ".join(tasks if options.task else [f"<{scope}>" for scope in scopes])
        flag = f"<--{field.name.replace('_', '-')}{'=' * (field.default is not False)}>"
        where = names or "training PaliGemma, without <--task=>"
        reasons[field.name] = f"{flag} applies to {where}"
    return reasons


def check_options(options: TrainOptions) -> None:
    """Raise UsageError for options that do not go together. Reads no file but the adapter's."""
    if options.task is None and options.model is None:
        raise UsageError(
            "<--model=> is missing: without <--task=>, train fine-tunes PaliGemma",
            hint="name a checkpoint, such as <--model google/paligemma2-3b-pt-224>; <--task=> "
            "trains other models",
        )
    for reason in inapplicable(options).values():
        raise UsageError(reason, hint="omit it")
    has_evaluation = bool(options.eval or options.eval_fraction)
    needs_evaluation = "<--eval-every=>" if options.eval_every else "<--patience=>"
    conflicts = (
        (
            options.task is not None and (options.model is None) == (options.init is None),
            "train starts from a checkpoint or from random weights",
            "give either <--model NAME> or <--init tiny|small|base>",
        ),
        (
            options.revision is not None and not is_on_hub(options.model),
            f"{options.model} has no revisions to choose from",
            "<--revision=> needs a <--model=> on the Hub",
        ),
        (
            options.probe and options.init is not None,
            "<--probe> trains only the head of a checkpoint, and <--init=> starts without one",
            "<--model NAME>",
        ),
        (
            options.adapter is not None and (options.rank or options.alpha or options.targets),
            "<--adapter=> already has a rank, an alpha and targets",
            "remove <--rank=>, <--alpha=> and <--targets=>",
        ),
        (
            {*options.freeze} == {*PARTS},
            "<--freeze=> names all parts of the model, so there is nothing to train",
            "remove one of them",
        ),
        (
            options.epochs is not None and options.steps is not None,
            "<--epochs=> and <--steps=> both set the length of the training",
            "give only one",
        ),
        (
            options.eval and options.eval_fraction,
            "<--eval=> and <--eval-fraction=> both set the rows to evaluate on",
            "give only one",
        ),
        (
            (options.eval_every or options.patience) and not has_evaluation,
            f"{needs_evaluation} needs rows to evaluate on",
            "<--eval SOURCE> or <--eval-fraction 0.05>",
        ),
    )
    for is_conflict, message, hint in conflicts:
        if is_conflict:
            raise UsageError(message, hint=hint)
    _ = options.lora  # checks its values
