# SPDX-License-Identifier: Apache-2.0
"""The evaluate-only NumPyClient of a party that owns verification pairs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from clients.contract import read_evaluate, read_request
from fedface_flwr.config import Config
from fedface_flwr.errors import ProtocolError

if TYPE_CHECKING:
    from fedface_flwr.evaluation.evaluator import Evaluator


class ValidatorClient(NumPyClient):
    """Scores backbones on one party's pairs; images and embeddings stay here.

    Parameters
    ----------
    config : Config
        The run's configuration.
    party : str
        The party's name.
    cache : Path
        Where decoded images may be kept.
    """

    def __init__(self, config: Config, party: str, cache: Path) -> None:
        self._config, self._party, self._cache = config, party, cache

    def prepare(self, config: Mapping[str, Any]) -> int:
        """Open the party's pack, errors and all, and return the number of its pairs."""
        evaluator = self._evaluator()
        read_request(config, evaluator.layout)
        return evaluator.num_pairs

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> Any:
        """Refuse: a validator never trains.

        Raises
        ------
        ProtocolError
            Always.
        """
        raise ProtocolError(f"{self._party} is a validator; it evaluates and never trains")

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> Any:
        """Score or test one model; see ``clients.contract`` for both directions."""
        evaluator = self._evaluator()
        figures = evaluator.evaluate(read_evaluate(parameters, config, evaluator.layout))
        return 0.0, 0, figures

    def _evaluator(self) -> Evaluator:
        return _evaluator(self._config, self._config.data.packs[self._party], self._cache)


@lru_cache(maxsize=4)
def _evaluator(config: Config, pack: str, cache: Path) -> Evaluator:
    # Imported here, since a deployed node starts a new process for every message, of which not all need torch.
    import torch

    from fedface_flwr.evaluation.evaluator import Evaluator

    torch.set_num_threads(config.federation.threads)
    return Evaluator(config, pack, cache)
