# SPDX-License-Identifier: Apache-2.0
"""The round loop that all methods share; a method says what is sent and what is kept."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from clients.adapter import Serialiser, read_reply
from clients.contract import (
    PREPARE,
    TEST_FIGURES,
    read_figures,
    read_prepare_reply,
    write_evaluate,
    write_request,
)
from fedface_flwr.config import Config
from fedface_flwr.errors import ProtocolError
from fedface_flwr.federation.difference import FullModel, GlobalChange
from fedface_flwr.federation.layout import Layout, ModelState, Vector
from fedface_flwr.training.schedule import StepSchedule
from fedface_flwr.training.tasks import TrainResult
from strategies.checkpoints import Checkpoints, NoCheckpoints
from strategies.exchange import Exchange
from strategies.link import ROUND_WAITS, Link
from strategies.training_round import TrainingRound

Emit = Callable[[dict[str, Any]], None]


class RoundLoop(Strategy):
    """Runs the rounds of one method and the test at the end.

    Parameters
    ----------
    config : Config
        The run's configuration.
    half : str
        Which half of the folds Federated Validation uses; the test takes the other.
    layout : Layout
        The backbone's.
    first : ModelState
        The first weights, from which every party starts.
    emit : callable
        Takes each event of the run (see ``fedface_flwr.reporting.metrics``).
    """

    def __init__(self, config: Config, half: str, layout: Layout, first: ModelState, emit: Emit) -> None:
        self.config, self.half, self.layout, self.emit = config, half, layout, emit
        options = config.optimizer
        self.schedule = StepSchedule(options.rate, options.milestones, options.factor, config.training.rounds)
        self.round = 0
        self.ready = 0.0
        self.samples: dict[str, int] = {}
        self.last_round = dict.fromkeys(config.trainers, 0)
        self.loss_ema: dict[str, float] = {}
        self.bytes_sent: dict[str, int] = defaultdict(int)
        self.tests: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
        self.seconds = dict.fromkeys(("training", "validation", "testing"), 0.0)
        self._models = self.first_models(first)
        self._tested = ""
        self.on_trained: Callable[[RoundLoop], None] = lambda loop: None
        """Called between the last round and the test, which others may fail."""
        self._event: dict[str, Any] = {}
        self._training: TrainingRound
        self._exchange: Exchange
        self.rejected: dict[str, int] = {}
        self.checkpoints: Checkpoints = NoCheckpoints()
        self.link: Link

    # What a method decides.

    @abstractmethod
    def first_models(self, first: ModelState) -> dict[str, ModelState]:
        """Return the server's models by name, ``global`` or each silo's own, before the first round."""

    @abstractmethod
    def model_for(self, trainer: str) -> ModelState:
        """Return the model that a trainer starts the round from."""

    def download_for(self, trainer: str, whole: bool = False) -> FullModel | GlobalChange:
        """Return what a trainer is sent to make that model from; ``whole``: it cannot make it from a difference."""
        return FullModel("", self.model_for(trainer), self.momentum)

    @abstractmethod
    def absorb(self, results: Mapping[str, TrainResult], rate: float) -> dict[str, float]:
        """Take the round's local models, by trainer in sorted order; return the weight given to each, if any."""

    def on_result(self, trainer: str, result: TrainResult) -> None:
        """Take note of a local model as soon as it is there."""

    def on_rejected(self, trainer: str) -> None:
        """Forget a local model that the round does not take."""

    @property
    def momentum(self) -> Vector | None:
        """The server's momentum to send, or None where the trainers have their own."""
        return None

    @property
    def weights_by_name(self) -> dict[str, float]:
        """Averaging weight of each trainer; empty where nothing is averaged."""
        return {}

    @contextmanager
    def beside_rounds(self) -> Iterator[None]:
        """Run what goes on beside the rounds."""
        yield

    def after_round(self) -> None:
        """Do what is due between two rounds."""

    # The loop.

    @property
    def models(self) -> Mapping[str, ModelState]:
        """The server's models by name."""
        return self._models

    def summary(self) -> None:
        """Announce the run."""
        self.emit(
            {
                "event": "start",
                "method": self.config.strategy.name,
                "seed": self.config.seed,
                "rounds": self.config.training.rounds,
                "steps_per_round": self.config.training.steps_per_round,
                "trainers": list(self.config.trainers),
                "validators": list(self.config.data.scorers if self.config.strategy.federated_validation else ()),
            }
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds and the test.

        The first weights, the rounds and the timeout are the configuration's; of Flower's parameters only the grid is
        needed, for an ``ArrayRecord`` of the model would be one more copy of it.

        Raises
        ------
        ProtocolError
            If too few trainers answer, a party's data cannot be used, or an answer is not what the contract says.
        """
        federation = self.config.federation
        self.link = Link(
            grid, self.config.roles, poll=federation.poll, ttl=2 * federation.round_timeout, lanes=federation.lanes
        )
        self.link.discover(federation.start_timeout)
        self.ready = time.time()
        self.summary()
        self._prepare()
        with self.beside_rounds():
            for number in range(self.round + 1, self.config.training.rounds + 1):
                self.round = number
                self._warn(self.link.refresh(ROUND_WAITS))
                self._run_round(grid)
                self.after_round()
                self.checkpoints.save(self)
        self.checkpoints.settle()
        self.on_trained(self)
        for name in self._models:
            self._tested = name
            start = time.perf_counter()
            messages = self.configure_evaluate(self.round, ArrayRecord(), ConfigRecord(), grid)
            self.aggregate_evaluate(self.round, self._ask(messages))
            self.seconds["testing"] += time.perf_counter() - start
        return Result()

    def _run_round(self, grid: Grid) -> None:
        began = time.perf_counter()
        messages = self.configure_train(self.round, ArrayRecord(), ConfigRecord(), grid)
        self.aggregate_train(self.round, self._ask(messages))
        wall = time.perf_counter() - began
        seconds = self._event["seconds"]
        self.seconds["training"] += seconds["training"]
        self.emit({**self._event, "seconds": {**seconds, "other": wall - sum(seconds.values())}})

    def _ask(self, messages: Iterable[Message]) -> Exchange:
        self._exchange = self.link.exchange(messages, self.config.federation.round_timeout)
        return self._exchange

    def _warn(self, faults: Iterable[str]) -> None:
        for fault in faults:
            self.emit({"event": "warning", "message": fault})

    def _prepare(self) -> None:
        """Have every party open its data, so that what is wrong with it is known before training starts."""
        silent = set(self.config.parties)
        messages = [
            self.link.message(party, f"query.{PREPARE}", {}, write_request(party, self.half, self.layout), PREPARE)
            for party in self.config.parties
        ]
        faults = []
        for reply in self._ask(messages):
            party = self.link.party_of(reply)
            silent.discard(party)
            try:
                self.samples[party] = read_prepare_reply(read_reply(reply)[1])
            except ProtocolError as error:
                faults.append(f"{party}: {error}")
        faults += [f"{party}: no answer within {self.config.federation.round_timeout:g} s" for party in silent]
        if faults:
            raise ProtocolError("; ".join(sorted(faults)))

    # What a run that is interrupted goes on from.

    def saved_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the loop's state, which do not change until the next round's models are absorbed."""
        models = self._models.items()
        return {f"{name}/{field}": getattr(model, field) for name, model in models for field in ("values", "counters")}

    def saved_values(self) -> dict[str, Any]:
        """Return the rest of the loop's state, of JSON's types, as it is now."""
        return {
            "round": self.round,
            "last_round": dict(self.last_round),
            "loss_ema": dict(self.loss_ema),
            "bytes_sent": dict(self.bytes_sent),
            "seconds": dict(self.seconds),
            "rejected": dict(self.rejected),
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> None:
        """Take what :meth:`saved_arrays` and :meth:`saved_values` returned, before :meth:`start`."""
        self.round = values["round"]
        self._models = {name: ModelState(arrays[f"{name}/values"], arrays[f"{name}/counters"]) for name in self._models}
        for name in ("last_round", "loss_ema", "bytes_sent", "seconds", "rejected"):
            getattr(self, name).update(values[name])

    # What Flower's Strategy asks for; replies come one by one, as they arrive.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin the round; return one train message a trainer."""
        self._training = TrainingRound(self)
        return self._training.messages()

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[None, None]:
        """Read the replies as they come and absorb the round's local models.

        Raises
        ------
        ProtocolError
            If fewer trainers answered than the round needs, with each one's reason.
        """
        training = self._training
        training.take(replies, self._exchange.add)
        for trainer in training.rejected:
            self.rejected[trainer] = self.rejected.get(trainer, 0) + 1
        self._report_faults(training.results, training.faults)
        self.checkpoints.settle()
        start = time.perf_counter()
        rate = self.schedule(server_round)
        results = {name: training.results[name] for name in sorted(training.results)}
        weights = self.absorb(results, rate)
        self.last_round |= dict.fromkeys(results, server_round)
        aggregation = time.perf_counter() - start
        self._event = {
            "event": "round",
            "round": server_round,
            "rate": rate,
            "silos": self._silo_figures(results),
            "weights": weights,
            "missing": sorted(training.faults),
            "rejected": sorted(training.rejected),
            "bytes": training.bytes_by_kind(),
            # The slowest silo's own steps: all that the round waits for beyond them is the federation's cost.
            "seconds": {"training": max(result.seconds for result in results.values()), "aggregation": aggregation},
        }
        # Its models go with it.
        del self._training
        return None, None

    def _silo_figures(self, results: Mapping[str, TrainResult]) -> dict[str, dict[str, float]]:
        """Return the event's figures by training set, and keep the running ones."""
        figures = {}
        for trainer, result in results.items():
            down, up = (self._training.bytes_of(trainer, way) for way in ("down", "up"))
            for name, branch in result.branches.items():
                self.loss_ema[name] = branch.loss_ema
                self.bytes_sent[name] += up
                figures[name] = {
                    "loss": branch.loss,
                    "accuracy": branch.accuracy,
                    "loss_ema": branch.loss_ema,
                    "seconds": result.seconds,
                    "bytes_down": down,
                    "bytes_up": up,
                }
        return {name: figures[name] for name in sorted(figures)}

    def _report_faults(self, results: Mapping[str, TrainResult], faults: Mapping[str, str]) -> None:
        reasons = "; ".join(f"{party}: {reason}" for party, reason in sorted(faults.items()))
        needed = self.config.federation.min_trainers or len(self.config.trainers)
        if len(results) < needed:
            raise ProtocolError(
                f"round {self.round}: {len(results)} of {len(self.config.trainers)} trainers answered, "
                f"{needed} are needed ({reasons})"
            )
        if faults:
            self._warn([f"round {self.round} goes on without {reasons}"])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one test message a test pack's owner, for the model that is being tested."""
        serialise = Serialiser()
        number = 1 + list(self._models).index(self._tested)
        messages = []
        for party in self.config.data.testers:
            model = self._models[self._tested]
            content, scalars = write_evaluate(party, self.half, self.layout, "test", number, model)
            kind, group = MessageType.EVALUATE, f"test-{self._tested}"
            messages.append(self.link.message(party, kind, serialise(content), scalars, group))
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Keep and emit each pack's figures for the model that is being tested.

        Raises
        ------
        ProtocolError
            If a pack's owner does not answer as it should.
        """
        for reply in replies:
            pack = self.link.party_of(reply)
            try:
                figures = read_figures(read_reply(reply)[1], TEST_FIGURES)
            except ProtocolError as error:
                raise ProtocolError(f"test of {self._tested} on {pack}: {error}") from error
            seconds = figures.pop("seconds")
            self.tests[self._tested][pack] = figures
            self.emit({"event": "test", "model": self._tested, "pack": pack, **figures, "seconds": seconds})
        silent = sorted(set(self.config.data.testers) - set(self.tests[self._tested]))
        if silent:
            raise ProtocolError(f"test of {self._tested}: no answer from {', '.join(silent)}")
