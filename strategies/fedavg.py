# SPDX-License-Identifier: Apache-2.0
"""Federated averaging (McMahan et al., arXiv 1602.05629): the weighted mean of the local backbones."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.federation.aggregation import aggregate, aggregate_counters, aggregate_difference
from fedface_flwr.federation.difference import Difference, FullModel, GlobalChange, decode, momentum_of
from fedface_flwr.federation.layout import ModelState, Vector
from fedface_flwr.training.tasks import TrainResult
from strategies.round_loop import RoundLoop

GLOBAL = "global"


class FedAvg(RoundLoop):
    """One global model; silos have a classical momentum of their own.

    With ``wire.differences`` the server moves its model by the difference as it is sent, so that every party holds the
    same bits, and carries what rounding left on to the next round.
    """

    def first_models(self, first: ModelState) -> dict[str, ModelState]:
        """Return the one global model and set up its averaging."""
        self.lock = threading.Lock()
        self.weights: npt.NDArray[np.float64] | None = None
        self._differences = self.config.sends_differences
        self._carry: Vector = np.zeros(self.layout.num_parameters if self._differences else 0, np.float32)
        self._momentum: Vector = np.zeros(0 if self._differences else self.num_momentum, np.float32)
        self._change: GlobalChange | None = None
        self._version = _new_version(0)
        self._held: dict[str, str] = {}
        return {GLOBAL: ModelState(first.values.copy(), first.counters.copy())}

    @property
    def num_momentum(self) -> int:
        """Length of the server's momentum; 0 for methods without one."""
        return 0

    def model_for(self, trainer: str) -> ModelState:
        """Return the global model, whoever trains."""
        return self.models[GLOBAL]

    def download_for(self, trainer: str, whole: bool = False) -> FullModel | GlobalChange:
        """Return the last round's difference for a trainer that holds the model before it, else the whole model."""
        if not self._differences:
            return super().download_for(trainer, whole)
        if self._change is not None and not whole and self._held.get(trainer) == self._change.base:
            return self._change
        return FullModel(self._version, self.models[GLOBAL], self._whole_momentum())

    def _whole_momentum(self) -> Vector | None:
        """Return what receivers of the difference make of it; before the first round it is zero and does not travel."""
        if self._change is None or not self._change.rate:
            return None
        return momentum_of(decode(self._change.difference), self._change.rate)

    def absorb(self, results: Mapping[str, TrainResult], rate: float) -> dict[str, float]:
        """Average the local models in place; weights of silos that did not answer are shared out among the others."""
        with self.lock:
            weights = self._current_weights()
        present = [self.config.trainers.index(name) for name in results]
        share = weights[present] / weights[present].sum()
        rows = [result.model.values for result in results.values()]
        model = self.models[GLOBAL]
        counters = aggregate_counters([r.model.counters for r in results.values()])
        if self._differences:
            # The local models are differences from the model as it was, and outlive the round.
            values = model.values.copy()
            difference = aggregate_difference(rows, share, values, self._carry, self.config.wire.dtype)
            self._models[GLOBAL] = ModelState(values, counters)
            self._held |= dict.fromkeys(results, self._version)
            self._publish(difference, rate)
        else:
            aggregate(rows, share, model.values, self._momentum, rate)
            model.counters[:] = counters
        return dict(zip(results, share.tolist(), strict=True))

    def _publish(self, difference: Difference, rate: float) -> None:
        """Name the new global model, and keep the step to it for those who hold the one before."""
        model, base = self.models[GLOBAL], self._version
        self._version = _new_version(self.round)
        statistics = model.values[self.layout.num_parameters :]
        rate = rate if self.num_momentum else 0.0
        self._change = GlobalChange(self._version, base, difference, statistics, model.counters, rate)

    def _current_weights(self) -> npt.NDArray[np.float64]:
        if self.weights is None:
            by_samples = self.config.strategy.weights == "samples"
            first = np.array([float(self.samples[name] if by_samples else 1) for name in self.config.trainers])
            self.weights = first / first.sum()
        return self.weights

    @property
    def weights_by_name(self) -> dict[str, float]:
        """Current averaging weight of each trainer."""
        with self.lock:
            weights = self.weights
        return {} if weights is None else dict(zip(self.config.trainers, weights.tolist(), strict=True))

    def saved_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the momentum, or the last difference and what rounding left, as well."""
        arrays = {**super().saved_arrays(), "momentum": self._momentum, "carry": self._carry}
        if self._change is not None:
            arrays["difference"] = self._change.difference.values
        return arrays

    def saved_values(self) -> dict[str, Any]:
        """Return the averaging weights, and who holds which model, as well."""
        with self.lock:
            weights = None if self.weights is None else self.weights.tolist()
        values = {**super().saved_values(), "weights": weights, "version": self._version, "held": dict(self._held)}
        if self._change is not None:
            change = self._change
            values["change"] = {"base": change.base, "scale": change.difference.scale, "rate": change.rate}
        return values

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> None:
        """Take what was saved."""
        super().restore(arrays, values)
        self.weights = None if values["weights"] is None else np.array(values["weights"])
        self._momentum, self._carry = arrays["momentum"], arrays["carry"]
        self._version, self._held = values["version"], dict(values["held"])
        if "change" in values:
            saved, model = values["change"], self.models[GLOBAL]
            difference = Difference(self.config.wire.dtype, arrays["difference"], saved["scale"])
            statistics = model.values[self.layout.num_parameters :]
            self._change = GlobalChange(
                self._version, saved["base"], difference, statistics, model.counters, saved["rate"]
            )


def _new_version(number: int) -> str:
    # Drawn, not counted: a run that is resumed an earlier round makes other models under the same numbers.
    return f"{number}-{secrets.token_hex(8)}"
