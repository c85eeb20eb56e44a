# SPDX-License-Identifier: Apache-2.0
"""From the configured names to a party's own images."""

from __future__ import annotations

from pathlib import Path

from fedface_flwr.config import Config
from fedface_flwr.data.open import open_image_set, open_pack
from fedface_flwr.data.sets import ImageSet, PairSet
from fedface_flwr.data.synthetic import SyntheticFaces, synthetic_pairs


def training_sets(config: Config, party: str, cache: Path, path: str = "") -> list[ImageSet]:
    """Open the training sets that ``party`` owns: its own, or all where the sets are pooled.

    Parameters
    ----------
    config : Config
        The run's configuration.
    party : str
        A trainer's name.
    cache : Path
        Where decoded images may be kept.
    path : str
        Where the party's own set lies, whatever the configuration says; empty: where it says.

    Raises
    ------
    DataError
        If a set is missing or damaged, naming file and record.
    """
    data = config.data
    owned = [name for name, own in zip(data.silos, data.trainers, strict=True) if own in config.sets_of(party)]
    if path:
        return [open_image_set(Path(path), config.model.input_size, cache_dir=cache)]
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


def pair_set(config: Config, name: str, cache: Path, path: str = "") -> PairSet:
    """Open a whole verification pack; parameters and errors as :func:`training_sets`."""
    data, size = config.data, config.model.input_size
    if path:
        return open_pack(Path(path), size, cache_dir=cache)
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
