# SPDX-License-Identifier: Apache-2.0
"""A model small enough to be exported in a moment, and what a run would leave of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedface_flwr.data.images import PREPROCESSING, normalise
from fedface_flwr.data.sets import Images
from fedface_flwr.data.synthetic import SyntheticFaces
from fedface_flwr.export.command import main
from fedface_flwr.federation.checkpoint import save_backbone
from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.training.flat import FlatModel

SIZE, DIMS = 40, 12
METADATA = {
    "architecture": "IR-18",
    "width": "4",
    "input_size": str(SIZE),
    "embedding": str(DIMS),
    **PREPROCESSING.metadata(),
    "method": "fedface",
    "rounds": "3",
    "seed": "7",
}


def faces(count: int, seed: int = 0) -> Images:
    people = SyntheticFaces("a", identities=count, images_per_identity=1, size=SIZE, seed=seed, domain=0)
    return people.images(np.arange(count))


def trained() -> IRBackbone:
    """Return a backbone whose statistics fit its random weights, as after training."""
    torch.manual_seed(1)
    backbone = IRBackbone(18, width=4, input_size=SIZE, embedding=DIMS, dropout=0.0)
    pixels = normalise(torch.tensor(faces(16)))
    with torch.no_grad():
        for _ in range(30):
            backbone(pixels)
    return backbone.eval()


def write_checkpoint(module: IRBackbone, path: Path) -> Path:
    flat = FlatModel(IRBackbone(18, width=4, input_size=SIZE, embedding=DIMS))
    flat.module.load_state_dict(module.state_dict())
    path.parent.mkdir(parents=True, exist_ok=True)
    save_backbone(path, flat.layout, flat.state(), METADATA)
    return path


def failing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 1
    return capsys.readouterr().err
