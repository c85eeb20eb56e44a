# SPDX-License-Identifier: Apache-2.0
"""Small sets of drawn faces as files, in the formats that parties own, and a run's options that use them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

from fedface_flwr.data.synthetic import SyntheticFaces, synthetic_pairs

TRAINERS, VALIDATORS = ("alpha", "beta", "gamma"), ("delta", "epsilon")
SIZE, IDENTITIES, IMAGES, PAIRS = 16, 6, 6, 200

RUN = (
    "data=faces",
    "data.root=elsewhere",
    f"data.silos=[{','.join(TRAINERS)}]",
    f"data.validators=[{','.join(f'{name}.bin' for name in VALIDATORS)}]",
    f"data.tests=[{VALIDATORS[0]}.bin]",
    "model.width=2",
    f"model.input_size={SIZE}",
    "model.embedding=8",
    "training.batch_size=8",
    "training.rounds=4",
    "training.steps_per_round=2",
    "fv.mode=sync",
    "fv.every=4",
    "fv.pairs=100",
)
"""Overrides of a run that takes a moment; where a party's data lies is the party's to know."""


def write_faces(root: Path) -> dict[str, Path]:
    """Write each party's data, a folder per identity or a pack, below ``root``; return where each lies."""
    paths = {name: _write_folder(root / name, i) for i, name in enumerate(TRAINERS)}
    return paths | {name: _write_pack(root / f"{name}.bin", i) for i, name in enumerate(VALIDATORS)}


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def _write_folder(folder: Path, domain: int) -> Path:
    faces = SyntheticFaces(
        folder.name, identities=IDENTITIES, images_per_identity=IMAGES, size=SIZE, seed=1, domain=domain
    )
    images = faces.images(np.arange(len(faces.labels)))
    for number, (label, image) in enumerate(zip(faces.labels, images, strict=True)):
        path = folder / f"person-{label}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_png(image))
    return folder


def _write_pack(path: Path, domain: int) -> Path:
    pairs = synthetic_pairs(path.stem, pairs=PAIRS, identities=20, size=SIZE, seed=1, domain=3 + domain)
    content = ([_png(image) for image in pairs.images], [bool(same) for same in pairs.same])
    path.write_bytes(pickle.dumps(content))
    return path
