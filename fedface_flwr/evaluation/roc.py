# SPDX-License-Identifier: Apache-2.0
"""The ROC curve of scores of genuine and impostor pairs, read by rules that are each said exactly.

A pair is accepted when its score is at least the threshold. With the threshold at each distinct score in turn, from
the highest down, the shares of impostor and of genuine pairs accepted (FAR, TAR) are the curve's points; (0, 0), with
the threshold at infinity, comes before them. All counts are exact integers.

Every function sorts what is not yet in ascending order: who asks for several figures of many scores sorts them once,
by ``np.sort``, and passes them so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ConfigError
from fedface_flwr.evaluation.ranked import Counts, Ranked, Scores

Floats = npt.NDArray[np.float64]

FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""The false accept rates at which the field reports, from the lenient to the strict."""

FEW = 10
"""Below so many impostor pairs let in, the relative standard error of a rate is above about a third."""

_WINDOW = 256


@dataclass(frozen=True)
class Operating:
    """A point of the ROC curve, chosen for a false accept rate.

    Attributes
    ----------
    target : float
        The false accept rate asked for.
    tar : float
        Share of genuine pairs accepted.
    far : float
        Share of impostor pairs accepted; by the rule ``interpolated`` it is the target.
    threshold : float
        The lowest score accepted; infinity where none is, nan by the rule ``interpolated``, which lies between two.
    """

    target: float
    tar: float
    far: float
    threshold: float


def tar_at_far(
    genuine: Scores, impostor: Scores, targets: Sequence[float], rule: str, *, below: int = 0
) -> list[Operating]:
    """Return the true accept rate at each false accept rate of ``targets``.

    Parameters
    ----------
    genuine, impostor : ndarray of float32 or float64, shape (n,), (m,)
        Scores of pairs of one person and of two, higher where more alike.
    targets : sequence of float
        False accept rates in [0, 1].
    rule : {'at most', 'nearest', 'interpolated'}
        ``at most``: the largest set of accepted pairs whose FAR is not above the target, which some threshold
        really reaches. With fewer than ``1 / target`` impostor pairs no impostor pair may pass.

        ``nearest``: as the field's IJB scripts (insightface's ``eval_ijbc.py``), of the points that scikit-learn's
        ``roc_curve`` keeps (it drops those in line with both neighbours) the one whose FAR is nearest to the target,
        the higher FAR of two as near, the highest TAR of that FAR. Its FAR may be above the target.

        ``interpolated``: linear in FAR between the last point whose FAR is not above the target (so the one of
        highest TAR at its FAR) and the next point of the curve, as ``numpy.interp`` does on all points.
    below : int
        Impostor pairs that were left out of ``impostor``: all of them score lower than each one there. Low rates depend
        on few of many pairs, and the rest need not be sorted.

    Raises
    ------
    DataError
        When there is no score of a kind, one is not a number, or a point depends on pairs that were left out.
    ConfigError
        When the rule is unknown or a target no rate.
    """
    rules: dict[str, Callable[[Ranked, float], Operating]] = {
        "at most": _at_most,
        "nearest": _nearest,
        "interpolated": _interpolated,
    }
    if rule not in rules:
        raise ConfigError(f"the rule for TAR at FAR is {rule!r}: it must be one of {', '.join(rules)}")
    for target in targets:
        if not 0 <= target <= 1:
            raise ConfigError(f"a false accept rate is {target}: it must lie in [0, 1]")
    ranked = Ranked.of(genuine, impostor, below)
    return [rules[rule](ranked, float(target)) for target in targets]


def doubt(
    target: float,
    impostors: int,
    of: tuple[str, str] = ("impostor pair", "impostor pairs"),
    rate: str = "a FAR",
    *,
    at_most: bool = False,
) -> tuple[str, bool]:
    """Return what to say of a figure at so low a false rate, and whether so many impostors decide it at all.

    Parameters
    ----------
    target : float
        The false rate.
    impostors : int
        Of how many it is a share.
    of : (str, str)
        What one and several of them are called.
    rate : str
        What the rate is called.
    at_most : bool
        Whether there may be fewer of them; then they decide it if that many would.
    """
    whole = f"{'at most ' if at_most else ''}{impostors} {of[impostors != 1]}"
    # The product of a target such as 1e-3 and 1000 pairs may fall short of 1 by rounding.
    expected = target * impostors + 1e-9
    if expected < 1:
        return f"not decided: {whole} cannot show {rate} of {target:.0e}", False
    if expected < FEW:
        return f"uncertain: it rests on the {'at most ' if at_most else ''}{int(expected)} nearest of {whole}", True
    return "", True


def eer(genuine: Scores, impostor: Scores) -> float:
    """Return the equal error rate: where the ROC polyline crosses FAR = 1 - TAR.

    Between two points of the curve the rate is interpolated linearly; shapes and errors as :func:`tar_at_far`.
    """
    ranked = Ranked.of(genuine, impostor)

    def crossed(threshold: float) -> bool:
        """Whether FAR >= 1 - TAR, in integers."""
        impostors, genuines = ranked.accepted(threshold)
        return impostors * ranked.genuines + genuines * ranked.impostors >= ranked.genuines * ranked.impostors

    upto = ranked.highest_where(crossed)
    impostors, genuines = ranked.accepted(upto)
    before_impostors, before_genuines = ranked.accepted_above(upto)
    far, before = impostors / ranked.impostors, before_impostors / ranked.impostors
    excess = far + genuines / ranked.genuines - 1
    excess_before = before + before_genuines / ranked.genuines - 1
    return before + (far - before) * (-excess_before / (excess - excess_before))


def auc(genuine: Scores, impostor: Scores) -> float:
    """Return the area under the ROC curve: the share of (genuine, impostor) couples with the genuine one higher.

    A tie counts half, so that this Mann-Whitney count is the area under the polyline; shapes and errors as
    :func:`tar_at_far`.
    """
    ranked = Ranked.of(genuine, impostor)
    few, many = ranked.genuine, ranked.impostor
    if swapped := len(few) > len(many):
        few, many = many, few
    below = np.searchsorted(many, few, side="left").sum() + np.searchsorted(many, few, side="right").sum()
    couples = 2 * len(few) * len(many)
    return (couples - int(below) if swapped else int(below)) / couples


def curve(genuine: Scores, impostor: Scores, points: int = 500, *, below: int = 0) -> tuple[Floats, Floats]:
    """Thin the ROC curve for a plot with a logarithmic FAR axis.

    Parameters
    ----------
    genuine, impostor : ndarray of float, shape (n,), (m,)
        As for :func:`tar_at_far`, errors too.
    points : int
        False accept rates tried, evenly spaced by logarithm from that of one impostor pair to the highest known.
    below : int
        As for :func:`tar_at_far`: the curve ends where the pairs that were left out begin.

    Returns
    -------
    far, tar : ndarray of float64, shape (k,)
        At most ``points + 1`` points that the curve has, by the rule ``at most``: the FAR ascending without
        repetition, the first 0.
    """
    ranked = Ranked.of(genuine, impostor, below)
    allowed = np.unique(np.rint(np.geomspace(1, ranked.known, points)).astype(np.int64))
    allowed = np.concatenate([[0], allowed[: -1 if below else None]])
    impostors, genuines = ranked.most_accepted(allowed)
    far, first = np.unique(impostors, return_index=True)
    return far / ranked.impostors, genuines[first] / ranked.genuines


def _operating(ranked: Ranked, target: float, impostors: int, genuines: int) -> Operating:
    threshold = ranked.lowest_accepted(impostors, genuines)
    return Operating(target, genuines / ranked.genuines, impostors / ranked.impostors, threshold)


def _allowed(impostors: int, target: float) -> int:
    """Return the most impostor pairs whose FAR, as computed in float64, is not above the target."""
    count = min(int(target * impostors) + 1, impostors)
    while count / impostors > target:
        count -= 1
    return count


def _at_most(ranked: Ranked, target: float) -> Operating:
    allowed = _allowed(ranked.impostors, target)
    ranked.check_known(allowed, target)
    impostors, genuines = ranked.most_accepted(np.array([allowed]))
    return _operating(ranked, target, int(impostors[0]), int(genuines[0]))


def _interpolated(ranked: Ranked, target: float) -> Operating:
    lower = _at_most(ranked, target)
    tar = lower.tar
    if lower.far < target < 1:
        kept_out = ranked.first_kept_out(np.array([_allowed(ranked.impostors, target)]))
        impostors, genuines = ranked.accepted(float(kept_out[0]))
        share = (target - lower.far) / (impostors / ranked.impostors - lower.far)
        tar += share * (genuines / ranked.genuines - lower.tar)
    return Operating(target, tar, target, float("nan"))


def _nearest(ranked: Ranked, target: float) -> Operating:
    width = _WINDOW
    allowed = _allowed(ranked.impostors, target)
    ranked.check_known(allowed, target)
    while True:
        impostors, genuines = _kept_points(ranked, allowed, width)
        far = impostors / ranked.impostors
        below, above = np.flatnonzero(far <= target), np.flatnonzero(far > target)
        # A run of points of one FAR, which come in the order of TAR, is whole once a higher FAR follows it.
        if len(below) and len(above) and far[above[0]] < far[-1]:
            break
        if width >= ranked.known:
            ranked.check_known(width, target)
            break
        width *= 4
    candidates = [int(below[-1])] if len(below) else []
    if len(above):
        candidates.append(int(np.searchsorted(far, far[above[0]], side="right")) - 1)
    best = min(candidates, key=lambda point: (abs(far[point] - target), -point))
    return _operating(ranked, target, int(impostors[best]), int(genuines[best]))


def _kept_points(ranked: Ranked, around: int, width: int) -> tuple[Counts, Counts]:
    """Return, as counts, the points that scikit-learn keeps where about ``around`` impostor pairs are accepted."""
    start, stop = max(ranked.known - around - width, 0), min(ranked.known - around + width, ranked.known)
    lowest = ranked.impostor[start] if start or ranked.below else -np.inf
    highest = ranked.impostor[stop - 1] if stop < ranked.known else np.inf
    genuine = ranked.genuine[
        np.searchsorted(ranked.genuine, lowest, side="left") : np.searchsorted(ranked.genuine, highest, side="right")
    ]
    thresholds = np.unique(np.concatenate([ranked.impostor[start:stop], genuine]))[::-1]
    impostors = ranked.known - np.searchsorted(ranked.impostor, thresholds, side="left")
    genuines = ranked.genuines - np.searchsorted(ranked.genuine, thresholds, side="left")
    keep = np.ones(len(thresholds), dtype=np.bool_)
    keep[1:-1] = (np.diff(impostors, 2) != 0) | (np.diff(genuines, 2) != 0)
    # What lies beyond the part decides whether its ends are kept, unless the curve ends there.
    keep[0] = stop == ranked.known
    keep[-1] &= start == 0 and not ranked.below
    origin = np.zeros(int(stop == ranked.known), dtype=np.int64)
    return np.concatenate([origin, impostors[keep]]), np.concatenate([origin, genuines[keep]])
