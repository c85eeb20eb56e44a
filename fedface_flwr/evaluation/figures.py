# SPDX-License-Identifier: Apache-2.0
"""What a protocol finds: figures that say everything they depend on, and the curves behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NOTE_SEPARATOR = "; "
FEATURES = "features"
"""The condition of a figure that comes of feature files, whose names are its value, and not of a model."""


@dataclass(frozen=True)
class Figure:
    """One number, with everything that it means.

    Attributes
    ----------
    benchmark : str
        What was evaluated on, as the suite names it, such as ``lfw``.
    protocol : str
        How, such as ``verification, 10 folds`` or ``IJB 1:1, templates``.
    metric : str
        What was measured, such as ``accuracy``, ``TAR at FAR 1e-04`` or ``rank 1``.
    value : float
        A fraction in [0, 1], except for thresholds; nan where the data does not decide it, as ``note`` then explains.
    conditions : mapping of str to str
        All that the value depends on besides, in the order in which it is shown: ``flip``, ``threshold rule``,
        ``N/D/F``, ``gallery``, ``distractors``.
    interval : (float, float), optional
        Bounds of its 95 % confidence interval.
    spread : float, optional
        Population standard deviation over folds.
    note : str
        What a reader must know before he trusts it.
    """

    benchmark: str
    protocol: str
    metric: str
    value: float
    conditions: dict[str, str] = field(default_factory=dict)
    interval: tuple[float, float] | None = None
    spread: float | None = None
    note: str = ""

    @property
    def of_features(self) -> bool:
        """Whether it is of feature files, whoever made them, and so of no model that is known."""
        return FEATURES in self.conditions

    @property
    def full_name(self) -> str:
        """The figure's name with all its conditions, which no other figure of an evaluation has."""
        conditions = "".join(f", {name} {value}" for name, value in self.conditions.items())
        return f"{self.benchmark}: {self.metric} ({self.protocol}{conditions})"


@dataclass(frozen=True)
class Curve:
    """A curve of a plot.

    Attributes
    ----------
    benchmark : str
        As the suite names it.
    kind : str
        ``roc`` (x: false accept rate, y: true accept rate; a DET plot has the same points), ``cmc`` (x: rank, y: share
        of probes found) or ``tpir`` (x: false positive, y: true positive identification rate).
    label : str
        What tells the curve from others of its kind and benchmark.
    x, y : ndarray of float64, shape (n,)
        At most some thousand points, x ascending.
    """

    benchmark: str
    kind: str
    label: str
    x: Floats
    y: Floats


@dataclass(frozen=True)
class Outcome:
    """All that one protocol finds out about one backbone.

    Attributes
    ----------
    figures, curves
        Of everything that could be measured.
    failures : mapping of str to str
        Parts of the protocol that could not be run, such as ``1:N``, and why.
    """

    figures: tuple[Figure, ...]
    curves: tuple[Curve, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
