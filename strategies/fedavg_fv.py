# SPDX-License-Identifier: Apache-2.0
"""Federated averaging with Federated Validation."""

from __future__ import annotations

from strategies.fedavg import FedAvg
from strategies.validation import ValidatedWeights


class FedAvgFV(ValidatedWeights, FedAvg):
    """Federated averaging whose weights the validators move."""
