# SPDX-License-Identifier: Apache-2.0
"""The pooled baseline: one party owns all sets and trains one head a set."""

from __future__ import annotations

from collections.abc import Mapping

from fedface_flwr.training.tasks import TrainResult
from strategies.fedavg import FedAvg


class Central(FedAvg):
    """Averaging over one pooled party that keeps its classical momentum: plain training, seen by the same loop."""

    def absorb(self, results: Mapping[str, TrainResult], rate: float) -> dict[str, float]:
        """Take the one model."""
        super().absorb(results, rate)
        return {}

    @property
    def weights_by_name(self) -> dict[str, float]:
        """Nothing is averaged."""
        return {}
