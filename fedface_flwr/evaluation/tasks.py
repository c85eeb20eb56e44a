# SPDX-License-Identifier: Apache-2.0
"""What an evaluating party is asked, without the means to do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedface_flwr.federation.layout import ModelState


@dataclass(frozen=True)
class EvaluateTask:
    """What the server asks of an evaluating party.

    Attributes
    ----------
    purpose : str
        ``validation``: score a candidate on the half that Federated Validation uses. ``test``: report on the other.
    half : str
        Which half of the folds is Federated Validation's.
    model : ModelState
        The backbone to judge.
    number : int
        Of the validation round, from 1, or of the test.
    """

    purpose: Literal["validation", "test"]
    half: Literal["first", "second"]
    model: ModelState
    number: int
