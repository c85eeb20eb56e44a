# SPDX-License-Identifier: Apache-2.0
"""The pooled baseline: one party owns all sets and trains one head a set."""

from __future__ import annotations

from strategies.fedavg import FedAvg


class Central(FedAvg):
    """Averaging over one pooled party that keeps its classical momentum: plain training, seen by the same loop."""

    @property
    def weights_by_name(self) -> dict[str, float]:
        """Nothing is averaged."""
        return {}
