# SPDX-License-Identifier: Apache-2.0
"""Federated Validation: search for better averaging weights by the validators' scores.

Bai et al., arXiv 2105.02501, section 3.3. Pure functions on small arrays; what a score is, and who computes it, is the
caller's affair. Scores are accuracies in percent: as fractions their variance would lie far below ``epsilon``, and the
norms would do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def draw_candidates(weights: Floats, count: int, generator: np.random.Generator) -> Floats:
    """Return ``count`` weight vectors: the current one, then uniform draws from the simplex.

    Parameters
    ----------
    weights : ndarray, shape (silos,)
        Current averaging weights w.
    count : int
        Number T of candidates, at least 1.
    generator : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    ndarray, shape (count, silos)
        Each row sums to one.
    """
    drawn = generator.dirichlet(np.ones(len(weights)), size=count - 1)
    return np.concatenate([weights[None], drawn])


@dataclass(frozen=True)
class LocalNorm:
    """Divide a validator's scores by their spread over this validation round's T candidates.

    ``S' = S / sqrt(var(S) + epsilon)`` with the population variance.
    """

    epsilon: float = 1e-3

    def __call__(self, validator: str, scores: Floats) -> tuple[LocalNorm, Floats]:
        """Return the unchanged norm and the normalised scores, shape (T,)."""
        return self, scores / np.sqrt(scores.var() + self.epsilon)


@dataclass(frozen=True)
class MovingNorm:
    """Divide a validator's scores by a running spread over validation rounds.

    ``mu <- (1 - gamma) mu + gamma mean(S)``, ``nu <- (1 - gamma) nu + gamma mean((S - mu)^2)``,
    ``S' = S / sqrt(nu + epsilon)``. A validator's first scores set mu and nu.
    """

    gamma: float = 0.01
    epsilon: float = 1e-3
    statistics: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __call__(self, validator: str, scores: Floats) -> tuple[MovingNorm, Floats]:
        """Return the norm with this validator's statistics moved, and the normalised scores, shape (T,)."""
        if validator in self.statistics:
            mu, nu = self.statistics[validator]
            mu = (1 - self.gamma) * mu + self.gamma * float(scores.mean())
            nu = (1 - self.gamma) * nu + self.gamma * float(((scores - mu) ** 2).mean())
        else:
            mu, nu = float(scores.mean()), float(scores.var())
        moved = replace(self, statistics={**self.statistics, validator: (mu, nu)})
        return moved, scores / np.sqrt(nu + self.epsilon)


@dataclass(frozen=True)
class NoNorm:
    """Leave scores as they are."""

    def __call__(self, validator: str, scores: Floats) -> tuple[NoNorm, Floats]:
        """Return the unchanged norm and the scores themselves."""
        return self, scores


Norm = LocalNorm | MovingNorm | NoNorm


@dataclass(frozen=True)
class Verdict:
    """Outcome of one validation round.

    Attributes
    ----------
    norm : Norm
        The norm with its statistics moved.
    normalised : dict of str to ndarray, each of shape (T,)
        Normalised scores by validator.
    best : int
        Index of the winning candidate, the first on ties.
    weights : ndarray, shape (silos,)
        The new averaging weights.
    """

    norm: Norm
    normalised: dict[str, Floats]
    best: int
    weights: Floats


def judge(norm: Norm, weights: Floats, candidates: Floats, scores: Mapping[str, Floats], phi: float) -> Verdict:
    """Move the averaging weights toward the candidate that the validators like best.

    ``t* = argmax_t sum_i S'_{i,t}`` and ``w <- (1 - phi) w + phi w_{t*}``.

    Parameters
    ----------
    norm : Norm
        How scores of different validators are made comparable.
    weights : ndarray, shape (silos,)
        Current w.
    candidates : ndarray, shape (T, silos)
        What was scored.
    scores : mapping of str to ndarray, each of shape (T,)
        Percent by validator; validators are taken in sorted order.
    phi : float
        Step toward the winner, in [0, 1].

    Raises
    ------
    ValueError
        If no validator scored.
    """
    if not scores:
        raise ValueError("no validator scored; there is nothing to judge by")
    normalised: dict[str, Floats] = {}
    for validator in sorted(scores):
        norm, normalised[validator] = norm(validator, scores[validator])
    best = int(np.argmax(np.sum([normalised[name] for name in normalised], axis=0)))
    return Verdict(norm, normalised, best, (1 - phi) * weights + phi * candidates[best])
