# SPDX-License-Identifier: Apache-2.0
"""The smallest real training: IR-18 of width 2 on 16 pixels, and a set of twenty drawn faces."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedface_flwr.compose import compose_config
from fedface_flwr.config import Config
from fedface_flwr.data.synthetic import SyntheticFaces
from fedface_flwr.federation.layout import ModelState
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel

OPTIONS = (
    "federation.device=cpu",
    "model.width=2",
    "model.input_size=16",
    "model.embedding=8",
    "training.batch_size=8",
    "training.steps_per_round=3",
    "training.loss_smoothing=0.9",
)


@lru_cache
def tiny_config(*overrides: str) -> Config:
    return compose_config([*OPTIONS, *overrides], {})


@lru_cache
def tiny_set(name: str = "alpha", identities: int = 5) -> SyntheticFaces:
    return SyntheticFaces(name, identities=identities, images_per_identity=4, size=16, seed=0, domain=0)


def first_model(config: Config) -> ModelState:
    return FlatModel(build_backbone(config.model, config.seed)).state()


def same_bits(a: ModelState, b: ModelState) -> bool:
    return bool(np.array_equal(a.values, b.values) and np.array_equal(a.counters, b.counters))
