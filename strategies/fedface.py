# SPDX-License-Identifier: Apache-2.0
"""FedFace, the whole method (Bai et al., arXiv 2105.02501)."""

from __future__ import annotations

from strategies.pfm import PFM
from strategies.validation import ValidatedWeights


class FedFace(ValidatedWeights, PFM):
    """Partially Federated Momentum whose averaging weights the validators move."""
