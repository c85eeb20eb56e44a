# SPDX-License-Identifier: Apache-2.0
"""The evaluate-only NumPyClient of a party that owns verification pairs."""

from __future__ import annotations

from typing import Any

from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from clients.exchange import Ask, Request
from fedface_flwr.errors import ProtocolError


class ValidatorClient(NumPyClient):
    """Scores backbones on one party's pairs; images and embeddings stay here.

    Parameters
    ----------
    config : str
        The run's configuration as JSON.
    ask : callable
        Reaches the party.
    """

    def __init__(self, config: str, ask: Ask) -> None:
        self._config, self._ask = config, ask

    def prepare(self, config: dict[str, Any]) -> int:
        """Have the party's pack opened, errors and all, and return the number of its pairs."""
        return int(self._ask(Request("prepare", self._config, [], config)).scalars["samples"])

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
