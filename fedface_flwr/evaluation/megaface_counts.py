# SPDX-License-Identifier: Apache-2.0
"""How many of some billions of scores reach each of many thresholds, and which are the highest, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedface_flwr.evaluation.megaface_thresholds import Floats, Highest, Ints, Thresholds

_NARROWEST, _WIDEST, _TALLEST = 1024, 8192, 4096
"""Columns of the first and of the later blocks, and most rows of one: early ones let most scores through."""


@dataclass(frozen=True)
class Columns:
    """Some strangers, all members of the same sets.

    Attributes
    ----------
    rows : slice or ndarray of int64
        Where they are in the matrix of strangers.
    noisy : ndarray of bool, shape (number of them,)
        Those that a list calls noise.
    sets : ndarray of bool, shape (sets,)
        The sets of which they are members.
    kept : int
        How many of the highest scores with each class of probes to keep.
    """

    rows: slice | Ints
    noisy: npt.NDArray[np.bool_]
    sets: npt.NDArray[np.bool_]
    kept: int


@dataclass(frozen=True)
class Counted:
    """Result of :func:`count_strangers`.

    Attributes
    ----------
    clean, noisy : ndarray of int64, shape (sets, keys)
        For each set and key, the strangers that reach it. The clean ones are exact below ``depth`` and at least
        ``depth`` beyond it; the noisy ones are exact.
    highest : list of list of (Highest, Highest)
        The highest scores of clean and of noisy strangers, for each group of columns and class of probes.
    """

    clean: Ints
    noisy: Ints
    highest: list[list[tuple[Highest, Highest]]]


def count_strangers(
    probes: Floats,
    classes: Sequence[slice],
    thresholds: Thresholds,
    strangers: Floats,
    groups: Sequence[Columns],
    *,
    depth: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Counted:
    """Score all probes against all strangers, once, and count.

    A threshold that ``depth`` strangers of every unfinished set reach is not looked at any more. However bad the
    network, few scores are then of interest after the first blocks, and the work is that of the matrix product.

    Parameters
    ----------
    probes, strangers : ndarray of float32, shape (n, dim), (m, dim)
        Unit vectors; the strangers may be a memory map.
    classes : sequence of slice
        Consecutive parts of the probes whose highest scores are wanted apart.
    thresholds : Thresholds
        Of the probes.
    groups : sequence of Columns
        Disjoint; best in an order in which the sets are finished one after the other.
    depth : int
        How far counts must be exact, at least 1.
    progress : callable
        Called with the number of strangers done since it was last called.
    """
    sets = len(groups[0].sets)
    clean, noisy = (np.zeros((sets, len(thresholds.keys)), np.int64) for _ in range(2))
    highest = [[(Highest(group.kept), Highest(group.kept)) for _ in classes] for group in groups]
    last_group = np.array([max(i for i, group in enumerate(groups) if group.sets[s]) for s in range(sets)])
    width = _NARROWEST
    with ThreadPoolExecutor(threads := len(os.sched_getaffinity(0))) as pool:
        block = _Block(probes, classes, thresholds, pool, threads)
        for number, group in enumerate(groups):
            start = 0
            while start < len(group.noisy):
                part = slice(start, min(start + width, len(group.noisy)))
                chosen = _shifted(group.rows, part)
                few, many = block.count(strangers[chosen], group.noisy[part], highest[number])
                clean[group.sets] += many
                noisy[group.sets] += few
                is_open: npt.NDArray[np.bool_] = np.any(clean[last_group >= number] < depth, axis=0)
                block.lowest = thresholds.lowest(is_open)
                progress(part.stop - part.start)
                start, width = part.stop, min(2 * width, _WIDEST)
    return Counted(clean, noisy, highest)


@dataclass
class _Block:
    """Counts one block of strangers at a time; holds the memory that all blocks use."""

    probes: Floats
    classes: Sequence[slice]
    thresholds: Thresholds
    pool: ThreadPoolExecutor
    threads: int
    lowest: Floats = field(init=False)
    scores: Floats = field(init=False)
    passing: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.lowest = self.thresholds.lowest(np.ones(len(self.thresholds.keys), np.bool_))
        cells = min(len(self.probes), _TALLEST) * _WIDEST
        self.scores, self.passing = np.empty(cells, np.float32), np.empty(cells, np.bool_)

    def count(
        self, strangers: Floats, noise: npt.NDArray[np.bool_], highest: list[tuple[Highest, Highest]]
    ) -> tuple[Ints, Ints]:
        """Return the noisy and the clean strangers that reach each key, and feed the highest of each class."""
        noisy_at = np.flatnonzero(noise)
        found: list[tuple[Ints, Floats]] = []
        found_noisy: list[tuple[Ints, Floats]] = []
        for tile in self._tiles():
            scores = self.scores[: (tile.stop - tile.start) * len(strangers)].reshape(-1, len(strangers))
            np.matmul(self.probes[tile], strangers.T, out=scores)
            if len(noisy_at):
                found_noisy.append(self._noisy(tile.start, scores, noisy_at, highest))
            found.append(self._clean(tile.start, scores, highest))
        return self._reached(found_noisy), self._reached(found)

    def _tiles(self) -> list[slice]:
        return [slice(at, min(at + _TALLEST, len(self.probes))) for at in range(0, len(self.probes), _TALLEST)]

    def _reached(self, found: list[tuple[Ints, Floats]]) -> Ints:
        if not found:
            return np.zeros(len(self.thresholds.keys), np.int64)
        rows, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return self.thresholds.reached(rows, scores)

    def _noisy(
        self, first: int, scores: Floats, noisy_at: Ints, highest: list[tuple[Highest, Highest]]
    ) -> tuple[Ints, Floats]:
        """Take the noisy strangers' scores out of a tile, where -inf takes their place."""
        own = scores[:, noisy_at].copy()
        scores[:, noisy_at] = -np.inf
        for part, (_, noisy) in zip(self.classes, highest, strict=True):
            noisy.add(own[_within(part, first, len(own))].ravel())
        return np.repeat(np.arange(first, first + len(own)), len(noisy_at)), own.ravel()

    def _clean(self, first: int, scores: Floats, highest: list[tuple[Highest, Highest]]) -> tuple[Ints, Floats]:
        """Return rows and scores of all that may reach an open threshold or be among the highest."""
        bounds = self.lowest[first : first + len(scores)].copy()
        unfilled = []
        for part, (clean, _) in zip(self.classes, highest, strict=True):
            own = _within(part, first, len(scores))
            if clean.cutoff == -np.inf:
                block = scores[own].ravel()
                clean.add(block[block > -np.inf])
                unfilled.append(part)
            else:
                np.minimum(bounds[own], np.float32(clean.cutoff), out=bounds[own])
        rows, values = self._at_least(scores, bounds)
        rows += first
        for part, (clean, _) in zip(self.classes, highest, strict=True):
            if part not in unfilled:
                own = slice(*np.searchsorted(rows, [part.start, part.stop]))
                clean.add(values[own][values[own] >= clean.cutoff])
        return rows, values

    def _at_least(self, scores: Floats, bounds: Floats) -> tuple[Ints, Floats]:
        """Return row and value of each score that is at least its row's bound, rows ascending."""

        def look(part: slice) -> tuple[Ints, Floats]:
            own = scores[part]
            passing = self.passing[part.start * own.shape[1] : part.stop * own.shape[1]]
            np.greater_equal(own, bounds[part, None], out=passing.reshape(own.shape))
            at = np.flatnonzero(passing)
            return part.start + at // own.shape[1], own.ravel()[at]

        edges = np.linspace(0, len(scores), self.threads + 1).astype(int).tolist()
        parts = list(self.pool.map(look, [slice(a, b) for a, b in pairwise(edges)]))
        return np.concatenate([rows for rows, _ in parts]), np.concatenate([values for _, values in parts])


def _shifted(rows: slice | Ints, part: slice) -> slice | Ints:
    return slice(rows.start + part.start, rows.start + part.stop) if isinstance(rows, slice) else rows[part]


def _within(part: slice, first: int, count: int) -> slice:
    """Rows of ``part`` in a tile of ``count`` rows from ``first`` on."""
    start, stop = (min(max(at - first, 0), count) for at in (part.start, part.stop))
    return slice(start, stop)
