"""Muon, the optimizer of the built-in model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from examples.demo_model.muon import Muon
from pgcli.training.optimizer import make_optimizer


def test_muon_updates_matrices_as_torch_does_and_the_rest_by_adamw() -> None:
    torch_muon = pytest.importorskip("torch.optim", reason="torch 2.9 has Muon").Muon
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 8))
    theirs, adamw = copy.deepcopy(ours), copy.deepcopy(ours)
    options: Any = {"weight_decay": 0.1, "betas": (0.9, 0.98)}
    optimizer = make_optimizer(ours, **options, kind=Muon)
    other = make_optimizer(adamw, **options)
    matrices = [theirs[0].weight, theirs[1].weight]
    torchs = torch_muon(matrices, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for group in (*optimizer.param_groups, *other.param_groups):
        group["lr"] = 0.02
    for _ in range(4):
        x = torch.randn(5, 24)
        for model in (ours, theirs, adamw):
            model.zero_grad()
        ours(x).square().mean().backward()
        for model in (theirs, adamw):
            for one, own in zip(model.parameters(), ours.parameters(), strict=True):
                one.grad = own.grad.clone()  # type: ignore[union-attr]
        for each in (optimizer, torchs, other):
            each.step()
    for layer in range(2):
        moved = (ours[layer].weight - theirs[layer].weight).norm() / theirs[layer].weight.norm()
        assert moved < 0.02  # torch's iterations are in bfloat16
        assert torch.equal(ours[layer].bias, adamw[layer].bias)
        assert not torch.allclose(ours[layer].weight, adamw[layer].weight, rtol=0.05)
