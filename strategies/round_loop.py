# SPDX-License-Identifier: Apache-2.0
"""The round loop that all methods share; a method says what is sent and what is kept."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from clients.adapter import ARRAYS, ReplyError, Serialiser, read_reply
from clients.contract import (
    PREPARE,
    TEST_FIGURES,
    needs_model,
    read_figures,
    read_prepare_reply,
    read_train_reply,
    write_evaluate,
    write_request,
    write_train,
)
from fedface_flwr.config import Config
from fedface_flwr.errors import ProtocolError
from fedface_flwr.federation.aggregation import norm
from fedface_flwr.federation.difference import FullModel, GlobalChange
from fedface_flwr.federation.layout import Layout, ModelState, Vector
from fedface_flwr.training.schedule import StepSchedule
from fedface_flwr.training.tasks import TrainOrder, TrainResult
from strategies.checkpoints import Checkpoints, NoCheckpoints
from strategies.exchange import Exchange
from strategies.link import ROUND_WAITS, Link

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
        self._bytes: dict[str, dict[str, int]] = {}
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
        """Return one train message a trainer, in their order; what several get is serialised once."""
        self._serialise = Serialiser()
        self._bytes = {trainer: defaultdict(int) for trainer in self.config.trainers}
        return [self._train_message(trainer) for trainer in self.config.trainers]

    def _train_message(self, trainer: str, whole: bool = False) -> Message:
        order = TrainOrder(
            self.round,
            self.schedule(self.round),
            self.last_round[trainer],
            self.checkpoints.oldest_round(trainer, self.last_round[trainer]),
            self.download_for(trainer, whole),
        )
        content, scalars = write_train(trainer, self.half, self.layout, order)
        arrays = self._serialise(content)
        self._count(trainer, "down", arrays)
        return self.link.message(trainer, MessageType.TRAIN, arrays, scalars, f"round-{self.round}")

    def _count(self, trainer: str, way: str, arrays: Mapping[str, Array]) -> None:
        """Add up a trainer's bytes by way and kind; pooled sets have sent their images instead."""
        if not self.config.strategy.pooled:
            for name, array in arrays.items():
                self._bytes[trainer][f"{way} {name}"] += len(array.data)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[None, None]:
        """Read the replies as they come and absorb the round's local models.

        Raises
        ------
        ProtocolError
            If fewer trainers answered than the round needs, with each one's reason.
        """
        results: dict[str, TrainResult] = {}
        silence = f"no answer within {self.config.federation.round_timeout:g} s"
        faults = dict.fromkeys(self.config.trainers, silence)
        rejected: set[str] = set()
        resent: set[str] = set()
        for reply in replies:
            trainer = self.link.party_of(reply)
            try:
                result = self._read_train(trainer, reply, trainer in resent)
            except ReplyError as error:
                faults[trainer] = str(error)
                continue
            except ProtocolError as error:
                faults[trainer] = str(error)
                rejected.add(trainer)
                continue
            if result is None:
                resent.add(trainer)
                self._exchange.add(self._train_message(trainer, whole=True))
                continue
            results[trainer] = result
            self.on_result(trainer, result)
            del faults[trainer], result
        for trainer, reason in self._outliers(results).items():
            faults[trainer] = reason
            rejected.add(trainer)
            del results[trainer]
            self.on_rejected(trainer)
        self._count_rejected(rejected)
        self._report_faults(results, faults)
        self.checkpoints.settle()
        start = time.perf_counter()
        rate = self.schedule(server_round)
        weights = self.absorb({name: results[name] for name in sorted(results)}, rate)
        self.last_round |= dict.fromkeys(results, server_round)
        aggregation = time.perf_counter() - start
        silos: dict[str, dict[str, float]] = {}
        for name in sorted(results):
            silos |= self._silo_figures(name, results[name])
        self._event = {
            "event": "round",
            "round": server_round,
            "rate": rate,
            "silos": {name: silos[name] for name in sorted(silos)},
            "weights": weights,
            "missing": sorted(faults),
            "rejected": sorted(rejected),
            "bytes": self._bytes_by_kind(),
            # The slowest silo's own steps: all that the round waits for beyond them is the federation's cost.
            "seconds": {"training": max(result.seconds for result in results.values()), "aggregation": aggregation},
        }
        return None, None

    def _read_train(self, trainer: str, reply: Message, resent: bool) -> TrainResult | None:
        """Return a trainer's result, or None if it asks for the whole model, which it does not do twice."""
        arrays, scalars = read_reply(reply)
        self._count(trainer, "up", reply.content.array_records.get(ARRAYS, {}))
        if needs_model(arrays, scalars) and not resent:
            return None
        differences = self.config.sends_differences
        start, dtype = self.model_for(trainer) if differences else None, self.config.wire.dtype
        return read_train_reply(arrays, scalars, self.config.sets_of(trainer), self.layout, start, dtype)

    def _outliers(self, results: Mapping[str, TrainResult]) -> dict[str, str]:
        """Return why an update is out of all proportion to the others', by trainer; two cannot be told apart."""
        limit = self.config.federation.max_update_ratio
        if not limit or len(results) < 3:
            return {}
        count = self.layout.num_parameters
        norms = {
            name: norm(result.model.values, self.model_for(name).values, count) for name, result in results.items()
        }
        faults = {}
        for name, own in norms.items():
            usual = median(other for trainer, other in norms.items() if trainer != name)
            if own > limit * usual:
                faults[name] = f"its update, of norm {own:.3g}, is over {limit:g} times the others' {usual:.3g}"
        return faults

    def _count_rejected(self, rejected: Iterable[str]) -> None:
        for trainer in rejected:
            self.rejected[trainer] = self.rejected.get(trainer, 0) + 1

    def _silo_figures(self, trainer: str, result: TrainResult) -> dict[str, dict[str, float]]:
        """Return the event's figures by training set, and keep the running ones."""
        down, up = (
            sum(count for kind, count in self._bytes[trainer].items() if kind.startswith(way)) for way in ("down", "up")
        )
        figures = {}
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
        return figures

    def _bytes_by_kind(self) -> dict[str, dict[str, int]]:
        """Return the round's bytes of all trainers by way and array."""
        totals: dict[str, dict[str, int]] = {"down": defaultdict(int), "up": defaultdict(int)}
        for kinds in self._bytes.values():
            for kind, count in kinds.items():
                way, name = kind.split()
                totals[way][name] += count
        return totals

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
