# SPDX-License-Identifier: Apache-2.0
"""Partially Federated Momentum (Bai et al., arXiv 2105.02501, section 3.2)."""

from __future__ import annotations

from fedface_flwr.federation.layout import Vector
from strategies.fedavg import FedAvg


class PFM(FedAvg):
    """The server keeps the momentum of the averaged model, and every silo applies it in each of its local steps."""

    @property
    def num_momentum(self) -> int:
        """Length of ``M``, which is over the parameters alone; ``M_0 = 0``."""
        return self.layout.num_parameters

    @property
    def momentum(self) -> Vector:
        """``M_{r-1}``, sent to every silo with the model where whole models travel."""
        return self._momentum
