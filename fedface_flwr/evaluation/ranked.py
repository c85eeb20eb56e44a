# SPDX-License-Identifier: Apache-2.0
"""Scores of genuine and impostor pairs in order, so that how many a threshold accepts is found by bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import DataError

Scores = npt.NDArray[np.floating[Any]]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ranked:
    """Both kinds of scores in ascending order.

    Attributes
    ----------
    genuine, impostor : ndarray of float32 or float64, shape (n,), (m,)
        Of one and the same type.
    below : int
        Impostor pairs that were left out, all of them lower than each one there.
    """

    genuine: Scores
    impostor: Scores
    below: int

    @classmethod
    def of(cls, genuine: Scores, impostor: Scores, below: int = 0) -> Ranked:
        """Sort what is not sorted; DataError if there is no score of a kind, or one is not a number."""
        genuine, impostor = _ascending(genuine, "genuine"), _ascending(impostor, "impostor")
        # searchsorted would convert the longer of two kinds of float at every call.
        common = np.result_type(genuine, impostor)
        return cls(genuine.astype(common, copy=False), impostor.astype(common, copy=False), below)

    @property
    def genuines(self) -> int:
        """How many genuine pairs there are."""
        return len(self.genuine)

    @property
    def known(self) -> int:
        """How many impostor pairs have a score here."""
        return len(self.impostor)

    @property
    def impostors(self) -> int:
        """How many impostor pairs there are, with those left out."""
        return len(self.impostor) + self.below

    def accepted(self, threshold: float) -> tuple[int, int]:
        """Count impostor and genuine pairs of at least this score."""
        return self._beyond(threshold, "left")

    def accepted_above(self, threshold: float) -> tuple[int, int]:
        """Count impostor and genuine pairs of more than this score."""
        return self._beyond(threshold, "right")

    def _beyond(self, threshold: float, side: Literal["left", "right"]) -> tuple[int, int]:
        # A Python float would have searchsorted convert all of a float32 array first.
        score = self.impostor.dtype.type(threshold)
        return (
            self.known - int(np.searchsorted(self.impostor, score, side)),
            self.genuines - int(np.searchsorted(self.genuine, score, side)),
        )

    def most_accepted(self, allowed: Counts) -> tuple[Counts, Counts]:
        """Count impostor and genuine pairs in the largest accepted sets of at most ``allowed`` impostor pairs."""
        some = allowed < self.known
        kept_out = self.first_kept_out(allowed[some])
        impostors, genuines = np.full(len(allowed), self.known), np.full(len(allowed), self.genuines)
        impostors[some] -= np.searchsorted(self.impostor, kept_out, side="right")
        genuines[some] -= np.searchsorted(self.genuine, kept_out, side="right")
        return impostors, genuines

    def first_kept_out(self, allowed: Counts) -> Scores:
        """Return the highest impostor score that stays out, with its ties, where ``allowed`` pairs may pass."""
        return self.impostor[self.known - 1 - allowed]

    def check_known(self, allowed: int, target: float) -> None:
        """Refuse a target that depends on pairs that were left out."""
        if self.below and allowed >= self.known:
            raise DataError(f"FAR {target:g} depends on more than the {self.known} highest impostor scores")

    def lowest_accepted(self, impostors: int, genuines: int) -> float:
        """Return the lowest score of the highest ones of each kind; infinity of none."""
        kinds = ((self.impostor, impostors), (self.genuine, genuines))
        lowest = [float(scores[-count]) for scores, count in kinds if count]
        return min(lowest, default=float("inf"))

    def highest_where(self, holds: Callable[[float], bool]) -> float:
        """Return the highest score that ``holds``, which is true from some score down, the lowest score included."""
        found = (_last(kind, holds) for kind in (self.impostor, self.genuine))
        return max(score for score in found if score is not None)


def _ascending(scores: Scores, kind: str) -> Scores:
    scores = np.asarray(scores)
    if scores.ndim != 1 or not len(scores):
        raise DataError(f"{kind} scores of shape {scores.shape}: at least one pair of each kind is needed, in one row")
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float64)
    if not (scores[:-1] <= scores[1:]).all():
        scores = np.sort(scores)
    # nan sorts to the end; a single one is never compared above.
    if np.isnan(scores[-1]):
        absent = np.count_nonzero(np.isnan(scores))
        raise DataError(f"{absent} of {len(scores)} {kind} scores are not numbers: check their embeddings")
    return scores


def _last(ascending: Scores, holds: Callable[[float], bool]) -> float | None:
    """Return the highest score that ``holds``, by bisection; None if none does."""
    low, high = -1, len(ascending) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(float(ascending[middle])):
            low = middle
        else:
            high = middle - 1
    return None if low < 0 else float(ascending[low])
