# SPDX-License-Identifier: Apache-2.0
"""Federated averaging (McMahan et al., arXiv 1602.05629): the weighted mean of the local backbones."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedface_flwr.federation.aggregation import aggregate, aggregate_counters
from fedface_flwr.federation.layout import ModelState, Vector
from fedface_flwr.training.tasks import TrainResult
from strategies.round_loop import RoundLoop

GLOBAL = "global"


class FedAvg(RoundLoop):
    """One global model; silos have a classical momentum of their own."""

    def first_models(self, first: ModelState) -> dict[str, ModelState]:
        """Return the one global model and set up its averaging."""
        self.lock = threading.Lock()
        self.weights: npt.NDArray[np.float64] | None = None
        self._momentum = self.first_momentum()
        return {GLOBAL: ModelState(first.values.copy(), first.counters.copy())}

    def first_momentum(self) -> Vector:
        """Return the server's momentum before the first round; of no length where there is none."""
        return np.zeros(0, dtype=np.float32)

    def model_for(self, trainer: str) -> ModelState:
        """Return the global model, whoever trains."""
        return self.models[GLOBAL]

    def absorb(self, results: Mapping[str, TrainResult], rate: float) -> dict[str, float]:
        """Average the local models in place; weights of silos that did not answer are shared out among the others."""
        with self.lock:
            weights = self._current_weights()
        present = [self.config.trainers.index(name) for name in results]
        share = weights[present] / weights[present].sum()
        model = self.models[GLOBAL]
        aggregate([r.model.values for r in results.values()], share, model.values, self._momentum, rate)
        model.counters[:] = aggregate_counters([r.model.counters for r in results.values()])
        return dict(zip(results, share.tolist(), strict=True))

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
