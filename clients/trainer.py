# SPDX-License-Identifier: Apache-2.0
"""The NumPyClient of a party that trains."""

from __future__ import annotations

from typing import Any

from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from clients.exchange import Ask, Request
from fedface_flwr.errors import ProtocolError


class TrainerClient(NumPyClient):
    """Trains the backbone on one party's images; its head and images stay here.

    It needs no torch: the party computes where its data is open, in this process or in the silo's service.

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
        """Have the party's data opened, errors and all, and return the number of its images."""
        return int(self._ask(Request("prepare", self._config, [], config)).scalars["samples"])

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
