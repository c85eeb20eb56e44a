# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest
from small_model import trained, write_checkpoint

from fedface_flwr.models.ir import IRBackbone


@pytest.fixture(scope="session")
def module() -> IRBackbone:
    return trained()


@pytest.fixture(scope="session")
def checkpoint(module: IRBackbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(module, tmp_path_factory.mktemp("secret-place") / "model.safetensors")
