# SPDX-License-Identifier: Apache-2.0
"""Ten-fold face verification: accuracy at the threshold of the other folds, TAR at FAR, AUC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation import roc
from fedface_flwr.evaluation.pair_figures_counts import count_on_grid
from fedface_flwr.wording import numbered

FOLDS = 10
FAR_TARGETS = (1e-3, 1e-4)
THRESHOLDS = np.arange(0, 4, 0.01)
"""The field's candidate thresholds on the squared distance of unit vectors, which lies in [0, 4]."""


@dataclass(frozen=True)
class Verification:
    """Result of :func:`verify`; every rate is a fraction in [0, 1].

    Attributes
    ----------
    accuracy : float
        Mean of ``fold_accuracies``.
    accuracy_std : float
        Population standard deviation of ``fold_accuracies``.
    thresholds : tuple of float
        For each test fold, the squared distance below which a pair counts as one person.
    fold_accuracies : tuple of float
        Accuracy of each test fold, in the order of the test folds.
    tar_at_far : dict of float to float
        True accept rate at each false accept rate of ``FAR_TARGETS``, the pairs of the test folds pooled.
    auc : float
        Area under the ROC curve over the same pairs.
    pairs : int
        Number of pairs in the test folds.
    """

    accuracy: float
    accuracy_std: float
    thresholds: tuple[float, ...]
    fold_accuracies: tuple[float, ...]
    tar_at_far: dict[float, float]
    auc: float
    pairs: int


def pair_distances(embeddings: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Squared Euclidean distance of the L2-normalised rows ``2i`` and ``2i + 1``.

    Parameters
    ----------
    embeddings : ndarray of float, shape (2 * pairs, dim)
        Embeddings as the backbone gives them, the two of a pair side by side.

    Returns
    -------
    ndarray of float64, shape (pairs,)
        Distances in [0, 4].

    Raises
    ------
    DataError
        When the number of rows is odd, or an embedding has no direction (zero, infinite or NaN).
    """
    if len(embeddings) % 2:
        raise DataError(f"{numbered(len(embeddings), 'embedding')} cannot form pairs: an even number is needed")
    vectors = embeddings.astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    usable = np.isfinite(norms) & (norms > 0)
    if not usable.all():
        raise DataError(
            f"{np.count_nonzero(~usable)} of {len(norms)} embeddings are zero or not finite: the backbone "
            "has diverged or its weights are damaged; lower the learning rate or load another checkpoint"
        )
    vectors /= norms
    distances: npt.NDArray[np.float64] = np.square(vectors[0::2] - vectors[1::2]).sum(axis=1)
    return distances


def fold_slices(pairs: int, folds: int = FOLDS) -> tuple[slice, ...]:
    """Split ``pairs`` into consecutive folds, not shuffled; the first ``pairs % folds`` hold one more.

    The folds are those of scikit-learn's ``KFold``. Any k of them, joined in order, split into the same k
    folds again, so that a part of a pack can be scored without the rest.

    Raises
    ------
    DataError
        When there are fewer pairs than folds.
    """
    if pairs < folds:
        raise DataError(
            f"{numbered(pairs, 'pair')} cannot fill {numbered(folds, 'fold')}: at least one pair a fold is needed"
        )
    size, longer = divmod(pairs, folds)
    sizes = (size + (fold < longer) for fold in range(folds))
    return tuple(slice(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0)))


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


def half_folds(half: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Divide the ten folds between federated validation and the final test, as FedFace's experiments do.

    Parameters
    ----------
    half : {'first', 'second'}
        The half which federated validation may see.

    Returns
    -------
    validation, test : tuple of int
        Five folds each.

    Raises
    ------
    ConfigError
        When ``half`` is neither.
    """
    first, second = tuple(range(FOLDS // 2)), tuple(range(FOLDS // 2, FOLDS))
    match half:
        case "first":
            return first, second
        case "second":
            return second, first
    raise ConfigError(f"the half of the folds is {half!r}: it must be 'first' or 'second'")


def verify(
    distances: npt.NDArray[np.floating],
    same: npt.NDArray[np.bool_],
    *,
    folds: int = FOLDS,
    test_folds: Sequence[int] | None = None,
    threshold_folds: Sequence[int] | None = None,
) -> Verification:
    """Verification accuracy by cross-validated threshold, as facenet and InsightFace report it.

    Each test fold is scored at the threshold, of 0, 0.01 .. 3.99, that classifies most pairs of the
    threshold folds right, the tested fold left out; the lowest such threshold on a tie. A pair counts as one
    person when its distance is below the threshold. Federated validation on a half A of the folds passes A
    as both ``test_folds`` and ``threshold_folds``; the final test passes the other half as ``test_folds``
    and lets all folds choose.

    TAR and AUC do not depend on folds and pool the pairs of the test folds. TAR is taken at the largest real
    threshold whose FAR is at most the target, without interpolation: if k impostor pairs may pass, that is
    the distance of impostor pair k + 1 in ascending order, for itself and its ties stay out and any larger
    threshold lets them in. With fewer than ``1 / target`` impostor pairs none may pass.

    Parameters
    ----------
    distances : ndarray of float, shape (pairs,)
        Squared distances.
    same : ndarray of bool, shape (pairs,)
        True where a pair shows one person.
    folds : int
        Number of consecutive folds.
    test_folds, threshold_folds : sequence of int, optional
        Folds to score, and folds which may choose the threshold; all by default.

    Raises
    ------
    DataError
        When shapes differ, a distance is not finite, there are fewer pairs than folds, or the test folds
        hold only pairs of one kind.
    ConfigError
        When no fold is tested, one does not exist, or a test fold leaves none to choose its threshold.
    """
    _check_pairs(distances, same)
    slices = fold_slices(len(same), folds)
    tested = range(folds) if test_folds is None else test_folds
    choosing = range(folds) if threshold_folds is None else threshold_folds
    _check_folds(folds, set(tested), set(choosing))

    fold_of_pair = np.repeat(np.arange(folds, dtype=np.int64), [part.stop - part.start for part in slices])
    counts = count_on_grid(distances.astype(np.float64, copy=False), same, fold_of_pair, folds, THRESHOLDS)
    best, accuracies = _cross_validate(counts.correct, slices, tested, choosing)
    pooled_distances = np.concatenate([distances[slices[fold]] for fold in tested])
    pooled_same = np.concatenate([same[slices[fold]] for fold in tested])
    if pooled_same.all() or not pooled_same.any():
        raise DataError("the test folds hold only pairs of one kind: order the pack so that each fold has both kinds")
    # A distance is a score turned round; sorted once for all that follows.
    genuine, impostor = np.sort(-pooled_distances[pooled_same]), np.sort(-pooled_distances[~pooled_same])
    return Verification(
        accuracy=float(np.mean(accuracies)),
        accuracy_std=float(np.std(accuracies)),
        thresholds=tuple(float(THRESHOLDS[index]) for index in best),
        fold_accuracies=tuple(accuracies),
        tar_at_far={point.target: point.tar for point in roc.tar_at_far(genuine, impostor, FAR_TARGETS, "at most")},
        auc=roc.auc(genuine, impostor),
        pairs=len(pooled_same),
    )


def _check_pairs(distances: npt.NDArray[np.floating], same: npt.NDArray[np.bool_]) -> None:
    if distances.shape != same.shape:
        raise DataError(f"distances of shape {distances.shape} do not match labels of shape {same.shape}")
    finite = np.isfinite(distances)
    if not finite.all():
        raise DataError(f"the distance of pair {int(np.argmin(finite))} is not finite: check its embeddings")


def _check_folds(folds: int, tested: set[int], choosing: set[int]) -> None:
    exist = tested | choosing <= set(range(folds))
    if not tested or not exist or any(choosing <= {fold} for fold in tested):
        raise ConfigError(
            f"test folds {sorted(tested)}, threshold folds {sorted(choosing)}: name at least one test fold, "
            f"only folds 0..{folds - 1}, and for each test fold another one to choose its threshold"
        )


def _cross_validate(
    correct: npt.NDArray[np.int64], slices: tuple[slice, ...], tested: Sequence[int], choosing: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Index of the chosen threshold and accuracy of each test fold."""
    best = [int(correct[[f for f in choosing if f != fold]].sum(axis=0).argmax()) for fold in tested]
    sizes = [slices[fold].stop - slices[fold].start for fold in tested]
    hits = [int(correct[fold, index]) for fold, index in zip(tested, best, strict=True)]
    return best, [hit / size for hit, size in zip(hits, sizes, strict=True)]
