# SPDX-License-Identifier: Apache-2.0
"""The evaluate-only NumPyClient of a party that owns verification pairs."""

from __future__ import annotations

from typing import Any

from flwr.common import NDArrays, Scalar

from clients.asking import AskingClient
from clients.exchange import Request
from fedface_flwr.errors import ProtocolError


class ValidatorClient(AskingClient):
    """Scores backbones on one party's pairs; images and embeddings stay here."""

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> Any:
        """Refuse: a validator never trains.

        Raises
        ------
        ProtocolError
            Always.
        """
        raise ProtocolError("a validator evaluates and never trains")

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> Any:
        """Score or test one model; see ``clients.contract`` for both directions."""
        answer = self._ask(Request("evaluate", self._config, parameters, dict(config)))  # type: ignore[arg-type]
        return 0.0, 0, answer.scalars
