# SPDX-License-Identifier: Apache-2.0
"""The backbone as configured, where it runs and in which precision."""

from __future__ import annotations

import torch

from fedface_flwr.config import ModelConfig
from fedface_flwr.errors import ConfigError
from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.seeding import derive_seed

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def build_backbone(model: ModelConfig, seed: int = 0) -> IRBackbone:
    """Return the configured backbone with the first weights of a run of this seed, on the CPU."""
    torch.manual_seed(derive_seed(seed, "backbone"))
    return IRBackbone(
        model.depth,
        width=model.width,
        input_size=model.input_size,
        embedding=model.embedding,
        dropout=model.dropout,
    )


def resolve_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the GPU where there is one.

    Raises
    ------
    ConfigError
        If torch knows no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
        device = torch.device(name)
        # Raises where torch has no mixed precision.
        torch.autocast(device.type, enabled=False)
        return device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"federation.device={name!r}: not available here ({error})") from error


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context in which the backbone computes in ``precision``."""
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not torch.float32)
