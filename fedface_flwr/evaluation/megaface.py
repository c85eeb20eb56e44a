# SPDX-License-Identifier: Apache-2.0
"""MegaFace challenge 1 (Kemelmacher-Shlizerman et al., CVPR 2016): a mate among up to a million distractors.

Each ordered pair of two faces of one probe person is a search: the first is the probe, and the gallery is the second,
its mate, with D distractors. The mate's rank is one more than the number of distractors that score at least as high:
a tie counts against the probe. Verification compares all pairs of two faces of one person with all pairs of a probe
and a distractor. Scores are cosines in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.megaface_counts import Columns, Counted, count_strangers
from fedface_flwr.evaluation.megaface_probes import Mask, MatePairs, ProbeRows, Probes
from fedface_flwr.evaluation.megaface_thresholds import Floats, Ints, Thresholds
from fedface_flwr.evaluation.roc import Operating, tar_at_far

FARS = (1e-4, 1e-5, 1e-6)
HIGHEST_FAR = 1e-3
"""Above it, the impostor scores that must be kept would no longer be few."""
DEPTH = 1000
"""How far the CMC goes; a rank beyond it is only known to be so."""


class Noise(Enum):
    """What is done with the faces which the public noise lists name; see :func:`evaluate`."""

    RAW = "raw"
    REPLACED = "refined, noise replaced"
    LEFT_OUT = "refined, noise left out"


@dataclass(frozen=True)
class Distractors:
    """The distractors and the sets of them that are to be searched.

    Attributes
    ----------
    features : ndarray of float32, shape (m, dim)
        Unit vectors; may be a memory map.
    sets : mapping of str to int or ndarray of int64
        For each set, by a name that says its size, the rows of its members, or how many of the first rows.
    noisy : ndarray of bool, shape (m,), optional
        Faces on the noise list; None if no list was given.
    """

    features: Floats
    sets: Mapping[str, int | Ints]
    noisy: Mask | None = None


@dataclass(frozen=True)
class Finding:
    """What was found with one set of distractors and one treatment of noise.

    Attributes
    ----------
    distractors : str
        Name of the set.
    noise : Noise
        What was done with noisy faces.
    searches : int
        Number of ordered pairs of a probe and its mate.
    cmc : ndarray of float64, shape (depth,)
        Share of searches with the mate at rank 1, at most 2, at most 3 and so on.
    verification : tuple of Operating
        For each false accept rate, the largest set of accepted pairs whose rate is at most that.
    genuine, impostors : int
        Number of pairs that verification compared.
    """

    distractors: str
    noise: Noise
    searches: int
    cmc: npt.NDArray[np.float64]
    verification: tuple[Operating, ...]
    genuine: int
    impostors: int


def evaluate(
    probes: Probes,
    distractors: Distractors,
    *,
    fars: Sequence[float] = FARS,
    depth: int = DEPTH,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Finding]:
    """Search all sets of distractors, with each treatment of noise, in one pass over the features.

    ``raw`` takes all faces as they are. Where noise lists are given, two more follow. ``refined, noise replaced`` is
    what InsightFace's public ``remove_noises.py`` prepares for the devkit: in place of a noisy probe there is the
    normalised sum of its person's clean features, with uniform noise of +-0.001 in each dimension, and a noisy
    distractor is moved so far away that it beats no mate, but is still counted among the impostor pairs. The sum
    contains the very features that it is then compared with, so this flatters: each noisy face becomes one of the
    easiest. ``refined, noise left out`` leaves noisy faces out of probes, mates, distractors and impostor pairs.

    Parameters
    ----------
    probes, distractors : Probes, Distractors
        Of one network.
    fars : sequence of float
        False accept rates, at most ``HIGHEST_FAR``.
    depth : int
        Length of the CMC.
    seed : int
        Of the noise of replaced probes, which the public script draws unseeded.
    progress : callable
        Called with the number of distractors done since it was last called.

    Returns
    -------
    list of Finding
        For each set, for each treatment.

    Raises
    ------
    DataError
        If no person has two faces, a set is empty, or a person with noisy faces has no clean one.
    ConfigError
        If a false accept rate or the depth is out of range.
    """
    _check(fars, depth)
    rows = ProbeRows.of(probes, seed)
    pairs = MatePairs.of(rows)
    groups = _groups(distractors, len(probes.features), max(fars))
    thresholds = Thresholds(pairs.probe, pairs.score, len(rows.features))
    counted = count_strangers(
        rows.features, rows.classes, thresholds, distractors.features, groups, depth=depth, progress=progress
    )
    scored = _Scored(rows, pairs, thresholds, groups, counted)
    listed = probes.noisy is not None or distractors.noisy is not None
    return [
        scored.finding(name, number, noise, fars, depth)
        for number, name in enumerate(distractors.sets)
        for noise in (Noise if listed else (Noise.RAW,))
    ]


_CLASSES = {Noise.RAW: (0, 1), Noise.REPLACED: (0, 2), Noise.LEFT_OUT: (0,)}
"""Classes of probe rows which each treatment takes: 0 clean, 1 noisy, 2 what replaces the noisy ones."""


def _groups(distractors: Distractors, probes: int, highest_far: float) -> list[Columns]:
    """Group the distractors by the sets that they are in, those in most sets first."""
    count = len(distractors.features)
    member = np.zeros((len(distractors.sets), count), np.bool_)
    for number, (name, rows) in enumerate(distractors.sets.items()):
        member[number, slice(rows) if isinstance(rows, int) else rows] = True
        if not member[number].any():
            raise DataError(f"distractor set {name} is empty")
    noisy = np.zeros(count, np.bool_) if distractors.noisy is None else distractors.noisy
    sizes = member.sum(axis=1)
    codes = np.left_shift(1, np.arange(len(member)))[:, None] * member
    code_of = codes.sum(axis=0)
    groups = []
    for code in sorted(set(np.unique(code_of).tolist()) - {0}, key=lambda code: (-code.bit_count(), code)):
        at = np.flatnonzero(code_of == code)
        sets = np.array([bool(code >> number & 1) for number in range(len(member))])
        kept = _passing(highest_far, probes * int(sizes[sets].max())) + 1
        whole = int(at[-1] - at[0]) + 1 == len(at)
        groups.append(Columns(slice(int(at[0]), int(at[-1]) + 1) if whole else at, noisy[at], sets, kept))
    return groups


@dataclass(frozen=True)
class _Scored:
    """All that one pass over the scores found out, from which each set and treatment takes its part."""

    rows: ProbeRows
    pairs: MatePairs
    thresholds: Thresholds
    groups: Sequence[Columns]
    counted: Counted

    def finding(self, name: str, number: int, noise: Noise, fars: Sequence[float], depth: int) -> Finding:
        own = self.pairs.among(_CLASSES[noise])
        if not own.any():
            raise DataError(f"with {noise.value} no probe person has two faces: check the noise list")
        searches = int(np.count_nonzero(own))
        keys = self.thresholds.place[own]
        before = self.counted.clean[number, keys]
        if noise is Noise.RAW:
            before = before + self.counted.noisy[number, keys]
        found = np.bincount(np.minimum(before, depth), minlength=depth + 1)[:depth]
        tops, impostors = self._impostors(number, noise)
        if not len(tops):
            raise DataError(f"distractor set {name} holds only noisy faces, so that with {noise.value} none is left")
        genuine = self.pairs.score[own & (self.pairs.probe < self.pairs.mate)]
        points = _operating(genuine, tops, impostors, fars)
        return Finding(name, noise, searches, np.cumsum(found) / searches, points, len(genuine), impostors)

    def _impostors(self, number: int, noise: Noise) -> tuple[Floats, int]:
        """Return the highest scores of a set's impostor pairs, and how many pairs there are."""
        classes = _CLASSES[noise]
        tops, strangers = [], 0
        for group, by_class in zip(self.groups, self.counted.highest, strict=True):
            if group.sets[number]:
                left_out = int(np.count_nonzero(group.noisy)) if noise is Noise.LEFT_OUT else 0
                strangers += len(group.noisy) - left_out
                for clean, noisy in (by_class[at] for at in classes):
                    tops += [clean.values()] + ([noisy.values()] if noise is Noise.RAW else [])
        probes = sum(self.rows.classes[at].stop - self.rows.classes[at].start for at in classes)
        return np.concatenate(tops), strangers * probes


def _operating(genuine: Floats, tops: Floats, impostors: int, fars: Sequence[float]) -> tuple[Operating, ...]:
    """Read the ROC curve off the highest of ``impostors`` scores, which alone decide it at so low rates."""
    genuine, tops = np.sort(genuine), np.sort(tops)
    points = []
    for far in fars:
        passing = _passing(far, impostors)
        deciding = tops[-(passing + 1) :]
        point = tar_at_far(genuine, deciding, [min(passing / len(deciding), 1.0)], "at most")[0]
        met = round(point.far * len(deciding)) / impostors
        points.append(Operating(far, point.tar, met, point.threshold))
    return tuple(points)


def _passing(far: float, impostors: int) -> int:
    """Return the largest number of impostors whose share is at most ``far``."""
    near = math.floor(far * impostors)
    return max(count for count in (near - 1, near, near + 1) if count <= 0 or count / impostors <= far)


def _check(fars: Sequence[float], depth: int) -> None:
    for far in fars:
        if not 0 <= far <= HIGHEST_FAR:
            raise ConfigError(f"a false accept rate of {far!r} was asked for: here it must be in [0, {HIGHEST_FAR:g}]")
    if not fars or depth < 1:
        raise ConfigError(f"{len(fars)} false accept rates and a CMC of length {depth}: at least one of each is needed")
