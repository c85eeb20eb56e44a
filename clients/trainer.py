# SPDX-License-Identifier: Apache-2.0
"""The NumPyClient of a party that trains."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from clients.contract import half_of, read_request, read_train, write_train_reply
from fedface_flwr.config import Config
from fedface_flwr.errors import ProtocolError

if TYPE_CHECKING:
    from fedface_flwr.training.trainer import Trainer


class TrainerClient(NumPyClient):
    """Trains the backbone on one party's images; its head and images stay here.

    Parameters
    ----------
    config : Config
        The run's configuration.
    party : str
        The party's name.
    store : Path
        The party's private folder of this run.
    cache : Path
        Where decoded images may be kept.
    """

    def __init__(self, config: Config, party: str, store: Path, cache: Path) -> None:
        self._config, self._party, self._store, self._cache = config, party, store, cache

    def prepare(self, config: Mapping[str, Any]) -> int:
        """Open the party's data, errors and all, and return the number of its images."""
        trainer = self._trainer(config)
        read_request(config, trainer.layout)
        return trainer.num_images

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> Any:
        """Run one round; see ``clients.contract`` for both directions."""
        trainer = self._trainer(config)
        return write_train_reply(trainer.train(read_train(parameters, config, trainer.layout)))

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> Any:
        """Refuse: a trainer owns no pairs.

        Raises
        ------
        ProtocolError
            Always.
        """
        raise ProtocolError(f"{self._party} is a trainer; it trains and never evaluates")

    def _trainer(self, config: Mapping[str, Any]) -> Trainer:
        return _trainer(self._config, self._party, self._store / half_of(config), self._cache)


# A simulation's processes serve several parties in turn: keep a few, keyed by all that tells them apart.
@lru_cache(maxsize=4)
def _trainer(config: Config, party: str, store: Path, cache: Path) -> Trainer:
    # Imported here, since a deployed node starts a new process for every message, of which not all need torch.
    import torch

    from fedface_flwr.data.sources import training_sets
    from fedface_flwr.training.store import SiloStore
    from fedface_flwr.training.trainer import Trainer

    torch.set_num_threads(config.federation.threads)
    return Trainer(config, party, training_sets(config, party, cache), SiloStore(store))
