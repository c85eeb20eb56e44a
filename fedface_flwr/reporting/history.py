# SPDX-License-Identifier: Apache-2.0
"""The event log as series: what the plots and the reports draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from fedface_flwr.errors import DataError
from fedface_flwr.reporting.metrics import Event

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class RoundPace:
    """How many validation rounds were over inside one training round.

    Attributes
    ----------
    total
        Validation rounds of the run.
    median, maximum
        Validation rounds over inside one training round, over all training rounds.
    busiest
        The (first) training round that holds the maximum.
    begun_inside
        How many of the busiest round's validation rounds also began in it.
    seconds
        Wall time of the busiest round.
    """

    total: int
    median: float
    maximum: int
    busiest: int
    begun_inside: int
    seconds: float


class History:
    """The events of one run, by kind.

    A resumed run repeats the rounds after its checkpoint: of each number, the last event counts.

    Parameters
    ----------
    events
        The event log, in its order.

    Raises
    ------
    DataError
        No ``start`` event, or no ``round`` event.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.start = _last(events, "start")
        self.began: float = events[0]["time"]
        rounds = {event["round"]: event for event in events if event["event"] == "round"}
        if not rounds:
            raise DataError("the event log holds no training round; nothing can be reported")
        self.rounds = [rounds[number] for number in sorted(rounds)]
        validations = {event["validation"]: event for event in events if event["event"] == "validation"}
        self.validations = [validations[number] for number in sorted(validations)]
        self.warnings = [str(event["message"]) for event in events if event["event"] == "warning"]
        self.trainers: list[str] = self.start["trainers"]
        self.validators: list[str] = self.start["validators"]

    def round_numbers(self) -> FloatArray:
        """Return the number of each training round, [rounds]."""
        return np.array([event["round"] for event in self.rounds], dtype=np.float64)

    def silo_series(self, silo: str, figure: str) -> FloatArray:
        """Return loss, loss_ema or accuracy of `silo` by round, [rounds]; NaN where it was missing."""
        return _floats(event["silos"].get(silo, {}).get(figure) for event in self.rounds)

    def weight_series(self, silo: str) -> FloatArray:
        """Return the weight that `silo` had in each round's average, [rounds]; NaN where it was missing."""
        return _floats(event["weights"].get(silo) for event in self.rounds)

    def validation_positions(self) -> FloatArray:
        """Return when each validation round was over on the axis of training rounds, [validations].

        Training round r spans r-1..r; inside it, time runs evenly.
        """
        times = [self.began, *(event["time"] for event in self.rounds)]
        numbers = [self.rounds[0]["round"] - 1, *self.round_numbers()]
        positions: FloatArray = np.interp([event["time"] for event in self.validations], times, numbers)
        return positions

    def best_scores(self, validator: str) -> FloatArray:
        """Return `validator`'s score, in percent, of each chosen candidate, [validations]."""
        return _floats(
            event["scores"][validator][event["best"]] if validator in event["scores"] else None
            for event in self.validations
        )

    def updated_weights(self, silo: str) -> FloatArray:
        """Return the weight of `silo` after each validation round, [validations]."""
        return _floats(event["weights"].get(silo) for event in self.validations)

    def bytes_of(self, silo: str, direction: str) -> int:
        """Return what training moved for `silo` over all rounds, bytes; `direction` is up or down."""
        return sum(event["silos"][silo][f"bytes_{direction}"] for event in self.rounds if silo in event["silos"])

    def pace(self) -> RoundPace | None:
        """Count validation rounds inside training rounds; None for a run without validation."""
        if not self.validations:
            return None
        counts = Counter(event["training_round"] for event in self.validations)
        per_round = [counts[event["round"]] for event in self.rounds]
        place = int(np.argmax(per_round))
        busiest = self.rounds[place]
        began = self.rounds[place - 1]["time"] if place else self.began
        inside = [event for event in self.validations if event["training_round"] == busiest["round"]]
        return RoundPace(
            total=len(self.validations),
            median=median(per_round),
            maximum=per_round[place],
            busiest=busiest["round"],
            begun_inside=sum(event["time"] - event["seconds"] >= began for event in inside),
            seconds=busiest["time"] - began,
        )


def thinned(x: FloatArray, y: FloatArray, limit: int = 300) -> tuple[FloatArray, FloatArray]:
    """Keep at most `limit` evenly spaced points of a curve, its last one among them."""
    step = max(1, -(-len(x) // limit))
    keep = slice((len(x) - 1) % step, None, step)
    return x[keep], y[keep]


def _last(events: Sequence[Event], kind: str) -> Event:
    found = [event for event in events if event["event"] == kind]
    if not found:
        raise DataError(f"the event log holds no '{kind}' event; it is not the log of a run")
    return found[-1]


def _floats(values: Iterable[float | None]) -> FloatArray:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
