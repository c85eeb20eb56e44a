# SPDX-License-Identifier: Apache-2.0
"""What an evaluating party is asked, without the means to do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedface_flwr.federation.difference import AnchoredModel
from fedface_flwr.federation.layout import ModelState


@dataclass(frozen=True)
class EvaluateOrder:
    """What the server asks of an evaluating party, as it travels.

    Attributes
    ----------
    purpose : str
        ``validation``: score a candidate on the half that Federated Validation uses. ``test``: report on the other.
    half : str
        Which half of the folds is Federated Validation's.
    number : int
        Of the validation round, from 1, or of the test.
    download : ModelState or AnchoredModel
        The backbone to judge.
    """

    purpose: Literal["validation", "test"]
    half: Literal["first", "second"]
    number: int
    download: ModelState | AnchoredModel

    def on(self, model: ModelState) -> EvaluateTask:
        """Return the task on the backbone that the party has made of the download."""
        return EvaluateTask(self.purpose, self.half, model, self.number)


@dataclass(frozen=True)
class EvaluateTask:
    """What an evaluating party computes: :class:`EvaluateOrder` with the backbone in its hands."""

    purpose: Literal["validation", "test"]
    half: Literal["first", "second"]
    model: ModelState
    number: int
