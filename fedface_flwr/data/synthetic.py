# SPDX-License-Identifier: Apache-2.0
"""Synthetic faces: people who do not exist, for demonstrations and tests without private data.

A person is a point in a space of facial parameters; a photograph adds pose, light, expression, things in the
way and its silo's own style. Every draw comes from a counter-based stream whose key is a hash of what is
drawn, so that an image depends on its own key alone and sets share no people.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.drawing import Field, draw
from fedface_flwr.data.sets import Images, PairSet
from fedface_flwr.data.traits import FACE_RANGES, SHOT_RANGES, Style, silo_style
from fedface_flwr.errors import ConfigError

FOLDS = 10
_MIN_SIZE = 16
_WOBBLE = 0.12
"""How far a photograph strays from the person, as a fraction of each range: age, weight, make-up."""


class SyntheticFaces:
    """Labelled synthetic faces of one silo, drawn when asked for; satisfies ``ImageSet``.

    Image ``i`` shows identity ``i // images_per_identity`` and depends on nothing but ``seed``, ``name``,
    ``domain``, ``size``, that identity and ``i % images_per_identity``: neither on its batch nor on how large
    the set is.

    Parameters
    ----------
    name : str
        The silo's name; silos of different names show different people.
    identities, images_per_identity : int
        People, and photographs of each.
    size : int
        Height and width of the images in pixels, at least 16.
    seed : int
        Chooses the people and their photographs.
    domain : int
        Chooses the silo's style (colour, contrast, blur, noise, background, crop), at least 0; different
        domains show different people.

    Raises
    ------
    ConfigError
        If a count, the size or the domain is out of range.
    """

    def __init__(
        self, name: str, *, identities: int, images_per_identity: int, size: int, seed: int, domain: int
    ) -> None:
        _check(name, size=(size, _MIN_SIZE), domain=(domain, 0))
        _check(name, identities=(identities, 1), images_per_identity=(images_per_identity, 1))
        self.name = name
        self.num_identities = identities
        self.labels = np.repeat(np.arange(identities, dtype=np.int64), images_per_identity)
        self._size = size
        self._style = silo_style(domain)
        key = ("silo", name, seed, domain)
        self._faces = _people(key, identities)
        self._shots = np.concatenate([_shots((*key, identity), images_per_identity) for identity in range(identities)])

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, indices: npt.NDArray[np.int64]) -> Images:
        """Return the images at ``indices`` as uint8 RGB of shape (len(indices), 3, size, size)."""
        return _photograph(self.facial_parameters(indices), self._shots[indices], self._style, self._size)

    def facial_parameters(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return what the images show of their people, before pose and light, in units of each range.

        Shape (len(indices), parameters); images of one person differ by up to twice the wobble.
        """
        return _strayed(self._faces[self.labels[indices]], self._shots[indices])


def synthetic_pairs(name: str, *, pairs: int, identities: int, size: int, seed: int, domain: int) -> PairSet:
    """Return a verification pack of synthetic faces in LFW's order.

    Ten folds of equal size follow each other, each with its positive pairs first and its negative pairs after
    them, and no person appears in two folds. Each image is a photograph of its own.

    Parameters
    ----------
    name : str
        The pack's name; packs of different names, and packs and silos of one name, show different people.
    pairs : int
        Number of pairs, a multiple of 20.
    identities : int
        Number of people, at least 20 so that each fold has two.
    size, seed, domain : int
        As in :class:`SyntheticFaces`.

    Returns
    -------
    PairSet
        With ``2 * pairs`` images.

    Raises
    ------
    ConfigError
        If ``pairs`` is not a positive multiple of 20, or another value is out of range.
    """
    _check(name, size=(size, _MIN_SIZE), domain=(domain, 0), pairs=(pairs, 1), identities=(identities, 2 * FOLDS))
    if pairs % (2 * FOLDS):
        raise ConfigError(
            f"synthetic set '{name}': pairs must be a multiple of {2 * FOLDS}, "
            f"for {FOLDS} folds that are half positive, got {pairs}"
        )
    key = ("pairs", name, seed, domain)
    shown = pair_identities(name, pairs=pairs, identities=identities, seed=seed, domain=domain)
    shots = _shots(key, 2 * pairs)
    faces = _strayed(_people(key, identities)[shown.ravel()], shots)
    return PairSet(name, _photograph(faces, shots, silo_style(domain), size), shown[:, 0] == shown[:, 1])


def pair_identities(name: str, *, pairs: int, identities: int, seed: int, domain: int) -> npt.NDArray[np.int64]:
    """Return who is in each pair of :func:`synthetic_pairs`, shape (pairs, 2)."""
    people_of_fold = np.array_split(np.arange(identities, dtype=np.int64), FOLDS)
    folds = [
        _fold(_stream("pairs", name, seed, domain, "fold", fold), people, pairs // FOLDS)
        for fold, people in enumerate(people_of_fold)
    ]
    return np.concatenate(folds)


def _fold(rng: np.random.Generator, people: npt.NDArray[np.int64], pairs: int) -> npt.NDArray[np.int64]:
    """Identities of one fold's pairs, shape (pairs, 2): the first half equal, the second half different."""
    first = rng.integers(len(people), size=pairs)
    step = rng.integers(1, len(people), size=pairs)
    step[: pairs // 2] = 0
    return people[np.stack([first, (first + step) % len(people)], axis=1)]


def _check(name: str, **values: tuple[int, int]) -> None:
    for key, (value, least) in values.items():
        if value < least:
            raise ConfigError(f"synthetic set '{name}': {key} must be at least {least}, got {value}")


def _stream(*key: str | int) -> np.random.Generator:
    """Counter-based bits keyed by a hash that, unlike Python's own, is the same in every process."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def _people(key: tuple[str | int, ...], identities: int) -> npt.NDArray[np.float32]:
    """Facial parameters of each person in [0, 1), shape (identities, len(FACE_RANGES))."""
    draws = [_stream(*key, "face", identity).random(len(FACE_RANGES), np.float32) for identity in range(identities)]
    return np.stack(draws)


def _shots(key: tuple[str | int, ...], count: int) -> npt.NDArray[np.float32]:
    """Parameters of photographs in [0, 1), shape (count, shot's and strays); fewer are a prefix of more."""
    width = len(SHOT_RANGES) + len(FACE_RANGES)
    return _stream(*key, "shots").random((count, width), np.float32)


def _strayed(faces: npt.NDArray[np.float32], shots: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return faces + np.float32(_WOBBLE) * (2.0 * shots[:, len(SHOT_RANGES) :] - 1.0)


def _photograph(faces: npt.NDArray[np.float32], shots: npt.NDArray[np.float32], style: Style, size: int) -> Images:
    shot = _scaled(shots[:, : len(SHOT_RANGES)], SHOT_RANGES)
    return draw(_scaled(faces, FACE_RANGES) | shot, style, size)


def _scaled(unit: npt.NDArray[np.float32], ranges: dict[str, tuple[float, float]]) -> dict[str, Field]:
    low, high = np.asarray(list(ranges.values()), np.float32).T
    return dict(zip(ranges, (low + (high - low) * unit).T[:, :, None, None], strict=True))
