# SPDX-License-Identifier: Apache-2.0
"""Scores that are equal but for the order in which a matrix product sums.

Of equal features the same product comes out an ulp higher or lower by where it stands in a matrix. A network that has
collapsed to one feature would so be found to tell mates from strangers perfectly, or never.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.floating[Any]]

_STEPS = {np.dtype(np.float64): 2.0**44, np.dtype(np.float32): 2.0**20}
SLACK = 2.0**-20
"""By how much a float32 score may be off, where scores of two products are compared without being settled."""


def settle(scores: Scores) -> Scores:
    """Round scores in place, float64 to multiples of 2**-44 (6e-14) and float32 of 2**-20 (1e-6), and return them."""
    steps = _STEPS[scores.dtype]
    scores *= steps
    np.rint(scores, out=scores)
    scores /= steps
    return scores
