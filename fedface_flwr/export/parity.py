# SPDX-License-Identifier: Apache-2.0
"""Whether what was exported embeds as what it was exported from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedface_flwr.data.decoding import decode_many
from fedface_flwr.data.open import open_image_set
from fedface_flwr.data.packs import EncodedPack
from fedface_flwr.data.sets import Images
from fedface_flwr.data.synthetic import SyntheticFaces
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.pictures import Backbone, Embeddings
from fedface_flwr.wording import numbered

LIMIT = 1e-4
PICTURES = 16


@dataclass(frozen=True)
class Sample:
    """Pictures to embed by both, uint8 RGB (n, 3, size, size), and what they are."""

    images: Images
    name: str


@dataclass(frozen=True)
class Parity:
    """Largest absolute differences between the embeddings of two backbones, over pictures and batch sizes.

    Attributes
    ----------
    normalised, raw : float
        With and without L2 normalisation.
    pictures : int
        How many were embedded.
    batches : tuple of int
        In batches of these sizes.
    source : str
        Which pictures.
    """

    normalised: float
    raw: float
    pictures: int
    batches: tuple[int, ...]
    source: str

    def __str__(self) -> str:
        sizes = " and ".join(map(str, self.batches))
        return (
            f"{numbered(self.pictures, 'picture')} ({self.source}), batches of {sizes}: largest difference "
            f"{self.normalised:.2e} (L2-normalised), {self.raw:.2e} (raw)"
        )


def sample(source: Path | None, size: int) -> Sample:
    """Return pictures spread evenly over a ``.bin`` pack, a RecordIO folder or a folder of identities.

    Parameters
    ----------
    source : Path or None
        Where; None draws synthetic faces.
    size : int
        Side of the pictures, in pixels.

    Raises
    ------
    DataError
        If the source cannot be read.
    """
    if source is None:
        faces = SyntheticFaces("parity", identities=PICTURES // 2, images_per_identity=2, size=size, seed=0, domain=0)
        return Sample(faces.images(np.arange(PICTURES)), "synthetic faces")
    if source.is_dir():
        found = open_image_set(source, size, cache_dir=None)
        return Sample(found.images(_spread(len(found.labels))), source.absolute().name)
    pack = EncodedPack.open(source)
    return Sample(decode_many(pack.read, _spread(len(pack.labels)), size), source.name)


def _spread(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, PICTURES).round().astype(np.int64))


def check(reference: Backbone, candidate: Callable[[int], Backbone], pictures: Sample) -> Parity:
    """Compare a backbone with what was exported from it, one picture at a time and all at once.

    Parameters
    ----------
    reference : Backbone
        In torch, float32 on the CPU.
    candidate : callable
        Opens what was written, for a batch size.
    pictures : Sample
        What both embed.

    Raises
    ------
    DataError
        If a difference is above ``LIMIT``, of raw embeddings ``LIMIT`` times their largest value where that is above
        1, or not a number.
    """
    expected = reference.embed(pictures.images)
    batches = tuple(dict.fromkeys((1, len(pictures.images))))
    found = [candidate(batch).embed(pictures.images) for batch in batches]
    # Rounding is in proportion to the embeddings, which are far larger than 1 in some models.
    scale = max(1.0, float(np.abs(expected).max()))
    parity = Parity(
        _largest(_difference(_unit(actual), _unit(expected)) for actual in found),
        _largest(_difference(actual, expected) for actual in found),
        len(pictures.images),
        batches,
        pictures.name,
    )
    if not (parity.normalised <= LIMIT and parity.raw <= LIMIT * scale):
        raise DataError(f"what was written does not embed as the model does, so it was discarded: {parity}")
    return parity


def _largest(differences: Iterable[float]) -> float:
    """Return the largest, or nan if one is, which fails every comparison; Python's own ``max`` may pass it over."""
    return float(np.max(list(differences)))


def _difference(actual: Embeddings, expected: Embeddings) -> float:
    return float(np.abs(actual.astype(np.float64) - expected).max()) if actual.shape == expected.shape else np.nan


def _unit(embeddings: Embeddings) -> Embeddings:
    # In float64, for the square of a large float32 is infinite.
    unit: Embeddings = embeddings / np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
    return unit
