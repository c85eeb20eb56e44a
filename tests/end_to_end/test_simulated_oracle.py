# SPDX-License-Identifier: Apache-2.0
"""Oracle (a) in a full simulated run: with K = 1, PFM is central SGD with momentum on the mean gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from runs import TINY, finish, start
from safetensors.numpy import load_file
from torch.nn import functional as F

from fedface_flwr.compose import compose_config
from fedface_flwr.config import Config
from fedface_flwr.data.sampler import EpochSampler
from fedface_flwr.data.sources import training_sets
from fedface_flwr.models.heads import margin_head
from fedface_flwr.seeding import derive_seed
from fedface_flwr.training.backbone import build_backbone

OVERRIDES = (
    "strategy=pfm",
    "training.steps_per_round=1",
    "training.rounds=6",
    "training.flip=0",
    "model.dropout=0",
    "optimizer.milestones=[0.5]",
    # BatchNorm on few images amplifies rounding from step to step; small steps keep float32 near float64.
    "optimizer.rate=0.001",
)


def central_sgd(config: Config, cache: Path) -> dict[str, np.ndarray]:
    """Plain training in float64 on the mean of the silos' gradients, each silo's batch through the network alone."""
    model = build_backbone(config.model, config.seed).double().train()
    parameters = dict(model.named_parameters())
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
    sets = {name: training_sets(config, name, cache)[0] for name in config.trainers}
    heads, head_velocity = {}, {}
    for name, images in sets.items():
        torch.manual_seed(derive_seed(config.seed, "head", name))
        first = margin_head("cosface", config.model.embedding, images.num_identities, 1.0, 0.0).weight
        heads[name] = first.detach().double().requires_grad_()
        head_velocity[name] = torch.zeros_like(heads[name])
    beta, decay = config.optimizer.momentum, config.optimizer.weight_decay
    for step in range(config.training.rounds):
        rate = config.optimizer.rate * (1.0 if step < 3 else config.optimizer.factor)
        mean = {name: torch.zeros_like(p) for name, p in parameters.items()}
        head_gradients = {}
        for name, images in sets.items():
            seed = derive_seed(config.seed, "sampler", name)
            indices = EpochSampler(len(images.labels), config.training.batch_size, seed).batch(step)
            labels = torch.from_numpy(images.labels[indices])
            pixels = (torch.from_numpy(images.images(indices)).double() - 127.5) / 127.5
            cosine = F.normalize(model(pixels)) @ F.normalize(heads[name]).T
            margin = config.head.margin * F.one_hot(labels, cosine.shape[1])
            loss = F.cross_entropy(config.head.scale * (cosine - margin), labels)
            *gradients, head_gradients[name] = torch.autograd.grad(loss, [*parameters.values(), heads[name]])
            for key, gradient in zip(parameters, gradients, strict=True):
                mean[key] += gradient / len(sets)
        with torch.no_grad():
            for key, p in parameters.items():
                velocity[key].mul_(beta).add_(mean[key] + decay * p)
                p.sub_(rate * velocity[key])
            for name, weight in heads.items():
                head_velocity[name].mul_(beta).add_(head_gradients[name] + decay * weight)
                weight.sub_(rate * head_velocity[name])
    return {name: p.detach().numpy() for name, p in parameters.items()}


@pytest.mark.timeout(900)
def test_pfm_with_one_local_step_is_central_sgd_with_momentum(tmp_path: Path) -> None:
    code, out, err = finish(start(tmp_path, *OVERRIDES))
    assert code == 0, out + err
    trained = load_file(tmp_path / "run" / "checkpoint.safetensors")
    config = compose_config([*TINY, *OVERRIDES], {"run.dir": "unused"})
    expected = central_sgd(config, tmp_path / "cache")
    first = {name: p.detach().numpy() for name, p in build_backbone(config.model, config.seed).named_parameters()}
    for name, value in expected.items():
        # The run computes in float32; what it learned must stand far above what rounding does.
        np.testing.assert_allclose(trained[name], value, atol=5e-6, err_msg=name)
    moved = max(np.abs(value - first[name]).max() for name, value in expected.items())
    assert moved > 0.01
