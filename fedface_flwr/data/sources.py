# SPDX-License-Identifier: Apache-2.0
"""From the configured names to a party's own images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedface_flwr.config import Config
from fedface_flwr.data.open import open_image_set, open_pack
from fedface_flwr.data.sets import ImageSet, PairSet
from fedface_flwr.data.synthetic import SyntheticFaces, synthetic_pairs
from fedface_flwr.evaluation.verification import fold_slices


def training_sets(config: Config, party: str, cache: Path) -> list[ImageSet]:
    """Open the training sets that ``party`` owns: its own, or all where the sets are pooled.

    Parameters
    ----------
    config : Config
        The run's configuration.
    party : str
        A trainer's name.
    cache : Path
        Where decoded images may be kept.

    Raises
    ------
    DataError
        If a set is missing or damaged, naming file and record.
    """
    data = config.data
    owned = [name for name, own in zip(data.silos, data.trainers, strict=True) if own in config.sets_of(party)]
    return [_training_set(config, name, cache) for name in owned]


def _training_set(config: Config, name: str, cache: Path) -> ImageSet:
    data, size = config.data, config.model.input_size
    if data.kind == "files":
        return open_image_set(Path(data.root, name), size, cache_dir=cache)
    return SyntheticFaces(
        name,
        identities=data.synthetic.identities,
        images_per_identity=data.synthetic.images_per_identity,
        size=size,
        seed=config.seed,
        domain=data.silos.index(name),
    )


def pair_set(config: Config, name: str, cache: Path) -> PairSet:
    """Open a whole verification pack; errors as :func:`training_sets`."""
    data, size = config.data, config.model.input_size
    if data.kind == "files":
        return open_pack(Path(data.root, name), size, cache_dir=cache)
    # Validators' faces are of further domains and, for all methods and repetitions, the same.
    return synthetic_pairs(
        name,
        pairs=data.synthetic.pairs,
        identities=data.synthetic.pair_identities,
        size=size,
        seed=0,
        domain=len(data.silos) + list(data.packs.values()).index(name),
    )


def spread_over_folds(pairs: int, folds: Sequence[int], limit: int) -> npt.NDArray[np.int64]:
    """Choose pairs of some of the ten folds, at most ``limit`` in all (0: every one), evenly from each fold.

    Within a fold the choice is spread evenly, since public packs list a fold's positive pairs before its negative ones.

    Returns
    -------
    ndarray of int64
        Ascending pair numbers, as many from each fold.
    """
    slices = [fold_slices(pairs)[fold] for fold in folds]
    if not limit:
        return np.concatenate([np.arange(s.start, s.stop) for s in slices])
    each = min(max(limit // len(folds), 1), *(s.stop - s.start for s in slices))
    return np.concatenate([s.start + (np.arange(each) * (s.stop - s.start)) // each for s in slices])
