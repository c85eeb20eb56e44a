# SPDX-License-Identifier: Apache-2.0
"""What the NumPyClients of trainers and validators have in common."""

from __future__ import annotations

from typing import Any

from flwr.client import NumPyClient

from clients.exchange import Ask, Request


class AskingClient(NumPyClient):
    """Asks a party that computes where its data is open: in this process, or in the silo's service.

    It needs no torch.

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
        """Have the party's data opened, errors and all, and return the number of its images or pairs."""
        return int(self._ask(Request("prepare", self._config, [], config)).scalars["samples"])
