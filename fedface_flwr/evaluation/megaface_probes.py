# SPDX-License-Identifier: Apache-2.0
"""MegaFace's probes and their mates, as they are and as the public noise lists have them cleaned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.megaface_thresholds import Floats, Ints
from fedface_flwr.evaluation.ties import SLACK

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Probes:
    """The probe set, such as the 3,530 faces of 80 persons of FaceScrub.

    Attributes
    ----------
    features : ndarray of float32, shape (n, dim)
        Unit vectors.
    identities : ndarray, shape (n,)
        Of any type that NumPy can sort.
    noisy : ndarray of bool, shape (n,), optional
        Faces on the noise list; None if no list was given.
    """

    features: Floats
    identities: npt.NDArray[np.generic]
    noisy: Mask | None = None


@dataclass(frozen=True)
class ProbeRows:
    """All probe rows of all treatments: clean ones, then noisy ones, then what replaces these."""

    features: Floats
    identities: Ints
    classes: tuple[slice, slice, slice]

    @classmethod
    def of(cls, probes: Probes, seed: int) -> ProbeRows:
        """Put a probe set in this order; DataError if a person with noisy faces has no clean one."""
        identities = np.unique(probes.identities, return_inverse=True)[1].reshape(-1)
        noisy = np.zeros(len(identities), np.bool_) if probes.noisy is None else probes.noisy
        clean_at, noisy_at = np.flatnonzero(~noisy), np.flatnonzero(noisy)
        order = np.concatenate([clean_at, noisy_at])
        replaced = _replacements(probes.features, identities, clean_at, noisy_at, seed)
        edges = [0, len(clean_at), len(order), len(order) + len(noisy_at)]
        return cls(
            np.concatenate([probes.features[order], replaced]),
            identities[np.concatenate([order, noisy_at])],
            (slice(*edges[0:2]), slice(*edges[1:3]), slice(*edges[2:4])),
        )

    def kind(self) -> Ints:
        """Return each row's class."""
        return np.repeat(np.arange(3), [part.stop - part.start for part in self.classes])


def _replacements(features: Floats, identities: Ints, clean_at: Ints, noisy_at: Ints, seed: int) -> Floats:
    """Return the sum of the person's clean features, disturbed and normalised, for each noisy probe."""
    generator = np.random.default_rng(seed)
    sums = np.zeros((int(identities.max()) + 1, features.shape[1]), np.float32)
    np.add.at(sums, identities[clean_at], features[clean_at])
    alone = np.setdiff1d(identities[noisy_at], identities[clean_at])
    if len(alone):
        first = int(noisy_at[np.isin(identities[noisy_at], alone)][0])
        raise DataError(
            f"{len(alone)} probe persons have only noisy faces, such as that of face {first}: check the lists"
        )
    disturbance = generator.uniform(-0.001, 0.001, (len(noisy_at), features.shape[1])).astype(np.float32)
    replaced = sums[identities[noisy_at]] + disturbance
    unit: Floats = replaced / np.linalg.norm(replaced, axis=1, keepdims=True)
    return unit


@dataclass(frozen=True)
class MatePairs:
    """All ordered pairs of two rows of one person, but for noisy ones with those that replace noisy ones."""

    probe: Ints
    mate: Ints
    score: Floats
    kinds: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, rows: ProbeRows) -> MatePairs:
        """Score all pairs; DataError if there are none."""
        found: list[tuple[Ints, Ints, Floats]] = []
        order = np.argsort(rows.identities, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(rows.identities[order])) + 1):
            scores = rows.features[own] @ rows.features[own].T
            first, second = np.triu_indices(len(own), 1)
            found.append((own[first], own[second], scores[first, second]))
        one, other, score = (np.concatenate(parts) for parts in zip(*found, strict=True))
        # Strangers' scores come from other products: one that is equal to a mate's counts against the probe.
        score -= score.dtype.type(SLACK)
        bits = (1 << rows.kind()).astype(np.uint8)
        kinds = bits[one] | bits[other]
        wanted = kinds & 0b110 != 0b110
        one, other, score, kinds = one[wanted], other[wanted], score[wanted], kinds[wanted]
        if not len(one):
            raise DataError("no probe person has two faces, so no probe has a mate: check the probe list's identities")
        return cls(np.append(one, other), np.append(other, one), np.append(score, score), np.append(kinds, kinds))

    def among(self, classes: Sequence[int]) -> Mask:
        """Return which pairs have both rows in the given classes."""
        outside = 0b111 & ~sum(1 << number for number in classes)
        inside: Mask = np.equal(self.kinds & np.uint8(outside), 0)
        return inside
