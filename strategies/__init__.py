# SPDX-License-Identifier: Apache-2.0
"""One file per method over one shared round loop."""

from __future__ import annotations

from strategies.central import Central
from strategies.fedavg import FedAvg
from strategies.fedavg_fv import FedAvgFV
from strategies.fedface import FedFace
from strategies.pfm import PFM
from strategies.round_loop import RoundLoop
from strategies.solo import Solo

STRATEGIES: dict[str, type[RoundLoop]] = {
    "central": Central,
    "solo": Solo,
    "fedavg": FedAvg,
    "fedavg_fv": FedAvgFV,
    "pfm": PFM,
    "fedface": FedFace,
}
