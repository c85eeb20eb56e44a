# SPDX-License-Identifier: Apache-2.0
"""What a party computes, in whichever process its data is open: from a request of the contract to its answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch

from clients.contract import (
    NEEDS_MODEL,
    half_of,
    read_evaluate,
    read_request,
    read_train,
    write_train_reply,
)
from clients.exchange import Answer, Request
from clients.held import HeldModel
from clients.ledger import Ledger
from clients.node import Node, check_agreed
from fedface_flwr.config import Config, from_json
from fedface_flwr.data.sources import training_sets
from fedface_flwr.errors import ProtocolError, TrainingError
from fedface_flwr.evaluation.evaluator import Evaluator
from fedface_flwr.federation.difference import AnchoredModel, Difference, FullModel, encode
from fedface_flwr.federation.layout import ModelState
from fedface_flwr.training.store import SiloStore
from fedface_flwr.training.tasks import TrainOrder, TrainTask
from fedface_flwr.training.trainer import Trainer


class Party(Protocol):
    """One party with its data open."""

    def answer(self, request: Request) -> Answer:
        """Answer a request."""
        ...


def answer(request: Request, node: Node) -> Answer:
    """Answer a request to a node's party.

    Raises
    ------
    FedFaceError
        If the request is not what the contract or the party's policy says, or the party's data or state cannot be used.
    """
    half = half_of(request.scalars)
    return _party(from_json(request.config), node, half).answer(request)


# A simulation's processes serve several parties in turn, a silo's service several runs: keep a few.
@lru_cache(maxsize=4)
def _party(config: Config, node: Node, half: str) -> Party:
    check_agreed(node, config)
    torch.set_num_threads(config.federation.threads)
    return (TrainingParty if node.role == "trainer" else EvaluatingParty)(config, node, half)


class TrainingParty:
    """Trains on its own images; head and images stay here.

    Parameters
    ----------
    config : Config
        The run's configuration.
    node : Node
        Who the party is and where it keeps its things.
    half : str
        Which half of the folds validation uses in this part of the run; each part has heads of its own.
    """

    def __init__(self, config: Config, node: Node, half: str) -> None:
        self._config = config
        store = SiloStore(node.private_dir(config) / half)
        sets = training_sets(config, node.party, node.cache_dir, node.data)
        self._trainer = Trainer(config, node.party, sets, store)
        self._held = HeldModel(store)
        # The next message may come to another process, which knows what the store holds.
        self._lives_on = node.service
        # Methods with a server momentum start from zero, which does not travel.
        self._parameters = self._trainer.layout.num_parameters if config.strategy.server_momentum else 0

    def answer(self, request: Request) -> Answer:
        """Open the data, or train one round; see ``clients.contract``."""
        if request.kind == "prepare":
            read_request(request.scalars, self._trainer.layout)
            return Answer([], {"samples": self._trainer.num_images})
        if request.kind != "train":
            raise ProtocolError("a trainer trains and never evaluates")
        layout, dtype = self._trainer.layout, self._config.wire.dtype
        order = read_train(request.arrays, request.scalars, layout, dtype)
        # No schedule goes above its first rate; the factor is for the last bit.
        if order.rate > self._config.optimizer.rate * (1 + 1e-9):
            raise ProtocolError(f"a rate of {order.rate}, above the run's {self._config.optimizer.rate}")
        if order.round > self._config.training.rounds:
            raise ProtocolError(f"round {order.round} of a run of {self._config.training.rounds}")
        arrays, images, metrics = self._train(order) if self._config.sends_differences else self._train_weights(order)
        return Answer(arrays, {"images": images, **metrics})

    def _train_weights(self, order: TrainOrder) -> Any:
        sent = order.download
        if not isinstance(sent, FullModel):
            raise ProtocolError("a difference in a run that sends whole models (wire.differences=false)")
        return write_train_reply(self._trainer.train(self._task(order, sent.model, sent.momentum)), None)

    def _train(self, order: TrainOrder) -> Any:
        received = self._held.receive(order.download)
        if received is None:
            return [], 0, NEEDS_MODEL
        model, momentum = received
        result = self._trainer.train(self._task(order, model, momentum), lend=True)
        if not self._lives_on:
            self._held.settle()
        return write_train_reply(result, self._difference(result.model, model))

    def _task(self, order: TrainOrder, model: ModelState, momentum: Any) -> TrainTask:
        if momentum is None and self._parameters:
            momentum = np.zeros(self._parameters, np.float32)
        return TrainTask(order.round, order.rate, model, momentum, order.previous, order.oldest)

    def _difference(self, end: ModelState, start: ModelState) -> Difference:
        count = self._trainer.layout.num_parameters
        try:
            return encode(end.values[:count], self._config.wire.dtype, start.values[:count])
        except ValueError as error:
            raise TrainingError("the model is no longer finite; lower optimizer.rate") from error


class EvaluatingParty:
    """Scores backbones on its own pairs; images and embeddings stay here.

    Parameters
    ----------
    config : Config
        The run's configuration.
    node : Node
        Who the party is and where it keeps its things.
    half : str
        Which half of the folds validation uses in this part of the run; each part has an anchor of its own.
    """

    def __init__(self, config: Config, node: Node, half: str) -> None:
        self._policy = node.policy
        self._dtype = config.wire.dtype
        self._held = HeldModel(SiloStore(node.private_dir(config) / half))
        self._lives_on = node.service
        pack = config.data.packs[node.party]
        self._evaluator = Evaluator(config, pack, node.cache_dir, node.data)
        self._ledger = Ledger(node.private_dir(config) / "answers.json", node.policy) if node.policy else None
        self._check_pairs(config)

    def _check_pairs(self, config: Config) -> None:
        # A score, and a test, rest on half of the folds.
        if self._policy and self._evaluator.num_pairs // 2 < self._policy.min_pairs:
            raise ProtocolError(f"this party gives no score over fewer than {self._policy.min_pairs} pairs")

    def answer(self, request: Request) -> Answer:
        """Open the data, score a candidate or test; see ``clients.contract``."""
        if request.kind == "prepare":
            read_request(request.scalars, self._evaluator.layout)
            return Answer([], {"samples": self._evaluator.num_pairs})
        if request.kind != "evaluate":
            raise ProtocolError("a validator evaluates and never trains")
        order = read_evaluate(request.arrays, request.scalars, self._evaluator.layout, self._dtype)
        model = self._model(order.download)
        if model is None:
            return Answer([], NEEDS_MODEL)
        task = order.on(model)
        if self._ledger is None:
            return Answer([], dict(self._evaluator.evaluate(task)))
        return Answer([], dict(self._ledger.answer(task, lambda: self._rounded(self._evaluator.evaluate(task)))))

    def _model(self, download: ModelState | AnchoredModel) -> ModelState | None:
        """Return the model to judge, or None if this party does not hold the anchor that it is a difference from."""
        if isinstance(download, ModelState):
            return download
        if download.anchor is not None:
            self._held.receive(FullModel(download.base, ModelState(download.anchor, download.counters)))
            if not self._lives_on:
                self._held.settle()
        anchor = self._held.find(download.base)
        return None if anchor is None else download.place(anchor.values)

    def _rounded(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Round scores and test figures, which are fractions, to the agreed percent points."""
        assert self._policy is not None
        unit = self._policy.score_resolution
        kept = {"seconds", "pairs"}
        units = {name: unit if name == "score" else unit / 100 for name in figures}
        return {n: v if n in kept else round(v / units[n]) * units[n] for n, v in figures.items()}
