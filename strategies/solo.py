# SPDX-License-Identifier: Apache-2.0
"""Every silo trains alone: what a party can do without the federation."""

from __future__ import annotations

from collections.abc import Mapping

from fedface_flwr.federation.layout import ModelState
from fedface_flwr.training.tasks import TrainResult
from strategies.round_loop import RoundLoop


class Solo(RoundLoop):
    """One model a silo, all from the same first weights; nothing is shared."""

    def first_models(self, first: ModelState) -> dict[str, ModelState]:
        """Return the first weights under each silo's name."""
        return dict.fromkeys(self.config.trainers, first)

    def model_for(self, trainer: str) -> ModelState:
        """Return the silo's own model."""
        return self.models[trainer]

    def absorb(self, results: Mapping[str, TrainResult], rate: float) -> dict[str, float]:
        """Keep each silo's model as it came."""
        self._models |= {name: result.model for name, result in results.items()}
        return {}
