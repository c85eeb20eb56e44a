# SPDX-License-Identifier: Apache-2.0
"""Partially Federated Momentum (Bai et al., arXiv 2105.02501, section 3.2)."""

from __future__ import annotations

import numpy as np

from fedface_flwr.federation.layout import Vector
from strategies.fedavg import FedAvg


class PFM(FedAvg):
    """The server keeps the momentum of the averaged model, and every silo applies it in each of its local steps."""

    def first_momentum(self) -> Vector:
        """Return M_0 = 0, over the parameters alone."""
        return np.zeros(self.layout.num_parameters, dtype=np.float32)

    @property
    def momentum(self) -> Vector:
        """``M_{r-1}``, sent to every silo with the model."""
        return self._momentum
