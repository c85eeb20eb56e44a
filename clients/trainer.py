# SPDX-License-Identifier: Apache-2.0
"""The NumPyClient of a party that trains."""

from __future__ import annotations

from typing import Any

from flwr.common import NDArrays, Scalar

from clients.asking import AskingClient
from clients.exchange import Request
from fedface_flwr.errors import ProtocolError


class TrainerClient(AskingClient):
    """Trains the backbone on one party's images; its head and images stay here."""

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> Any:
        """Run one round; see ``clients.contract`` for both directions."""
        answer = self._ask(Request("train", self._config, parameters, dict(config)))  # type: ignore[arg-type]
        metrics = dict(answer.scalars)
        return answer.arrays, int(metrics.pop("images")), metrics

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> Any:
        """Refuse: a trainer owns no pairs.

        Raises
        ------
        ProtocolError
            Always.
        """
        raise ProtocolError("a trainer trains and never evaluates")
