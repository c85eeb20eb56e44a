# SPDX-License-Identifier: Apache-2.0
"""The plain training that PFM with one local step must equal, in float64, without a line of the federation's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from fedface_flwr.config import Config
from fedface_flwr.data.sampler import EpochSampler
from fedface_flwr.data.sources import training_sets
from fedface_flwr.models.heads import margin_head
from fedface_flwr.seeding import derive_seed
from fedface_flwr.training.backbone import build_backbone

ONE_STEP = (
    "training.steps_per_round=1",
    "training.rounds=6",
    "training.flip=0",
    "training.batch_size=8",
    "model.dropout=0",
    "optimizer.milestones=[0.5]",
    # BatchNorm on few images amplifies rounding from step to step; small steps keep float32 near float64.
    "optimizer.rate=0.001",
)


def central_sgd(config: Config, cache: Path) -> dict[str, np.ndarray]:
    """Return the parameters after SGD on the mean of the silos' gradients, each silo's batch through the net alone."""
    options = config.optimizer
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
    for step in range(config.training.rounds):
        # Of ONE_STEP's six rounds the second half has the lower rate.
        rate = options.rate * (1.0 if step < 3 else options.factor)
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
                velocity[key].mul_(options.momentum).add_(mean[key] + options.weight_decay * p)
                p.sub_(rate * velocity[key])
            for name, weight in heads.items():
                head_velocity[name].mul_(options.momentum).add_(head_gradients[name] + options.weight_decay * weight)
                weight.sub_(rate * head_velocity[name])
    return {name: p.detach().numpy() for name, p in parameters.items()}
