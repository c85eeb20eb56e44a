# SPDX-License-Identifier: Apache-2.0
"""IJB 1:1: TAR at FAR of template pairs, for each combination of flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedface_flwr.errors import DataError
from fedface_flwr.evaluation import roc
from fedface_flwr.evaluation.figures import Curve, Figure, Outcome
from fedface_flwr.evaluation.screening import highest_scores
from fedface_flwr.evaluation.templates import Flags, Floats, TemplatePairs, pair_scores
from fedface_flwr.evaluation.ties import settle

FAR_RULES = ("nearest", "interpolated", "at most")

# Of the impostor scores; a little more than the highest rate asked for needs.
_SHARE = 0.125


def verify_templates(
    benchmark: str,
    protocol: str,
    features: Mapping[Flags, Floats],
    pairs: tuple[TemplatePairs, TemplatePairs],
    rules: Sequence[str],
) -> Outcome:
    """Measure verification of templates.

    Parameters
    ----------
    benchmark, protocol : str
        For the figures' names.
    features : mapping of Flags to ndarray of float64, shape (templates, dim)
        Of norm 1.
    pairs : (TemplatePairs, TemplatePairs)
        Genuine and impostor ones.
    rules : sequence of str
        How TAR at FAR is taken, see :func:`~fedface_flwr.evaluation.roc.tar_at_far`.
    """

    def measure(flags: Flags) -> Outcome:
        genuine = _exact_scores(features[flags], pairs[0])
        return _of_highest(benchmark, f"{protocol} 1:1", flags, (features[flags], pairs[1], genuine), rules)

    # While one combination's scores are computed, by all cores, another's are looked through, by one.
    with ThreadPoolExecutor(max_workers=2) as threads:
        outcomes = list(threads.map(measure, features))
    return Outcome(
        tuple(figure for outcome in outcomes for figure in outcome.figures),
        tuple(curve for outcome in outcomes for curve in outcome.curves),
    )


def _of_highest(
    benchmark: str,
    protocol: str,
    flags: Flags,
    scored: tuple[Floats, TemplatePairs, Floats],
    rules: Sequence[str],
) -> Outcome:
    """Measure one combination of flags: by the highest impostor scores, or by all where those do not decide it."""
    vectors, impostors, genuine = scored
    highest = highest_scores(vectors, impostors, genuine, roc.FARS, _SHARE)
    if highest is not None:
        try:
            return _outcome(benchmark, protocol, flags, (genuine, *highest), rules)
        except DataError:
            # A point next to the highest rate lies below the share.
            pass
    return _outcome(benchmark, protocol, flags, (genuine, _exact_scores(vectors, impostors), 0), rules)


def _exact_scores(vectors: Floats, pairs: TemplatePairs) -> Floats:
    """Return scores in float64, ascending."""
    return np.sort(settle(pair_scores(vectors, pairs)).astype(np.float64, copy=False))


def _outcome(
    benchmark: str, protocol: str, flags: Flags, scores: tuple[Floats, Floats, int], rules: Sequence[str]
) -> Outcome:
    """Measure genuine scores and impostor ones, ascending, so many more being below those."""
    genuine, impostor, below = scores
    figures = []
    for rule in rules:
        for point in roc.tar_at_far(genuine, impostor, roc.FARS, rule, below=below):
            note, decided = roc.doubt(point.target, len(impostor) + below)
            value = point.tar if decided else float("nan")
            conditions = {"N/D/F": flags.name, "FAR rule": rule}
            figures.append(Figure(benchmark, protocol, f"TAR at FAR {point.target:.0e}", value, conditions, note=note))
    return Outcome(tuple(figures), (Curve(benchmark, "roc", flags.name, *roc.curve(genuine, impostor, below=below)),))
