# SPDX-License-Identifier: Apache-2.0
"""Federated Validation (arXiv 2105.02501, section 3.3) as messages: beside the rounds, or between them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, Message, MessageType

from clients.adapter import Serialiser, num_bytes, read_reply
from clients.contract import SCORE_FIGURES, model_arrays, read_figures, write_evaluate
from fedface_flwr.config import FvConfig
from fedface_flwr.errors import ProtocolError
from fedface_flwr.federation.aggregation import aggregate_counters, combine
from fedface_flwr.federation.layout import ModelState
from fedface_flwr.federation.validation import LocalNorm, MovingNorm, NoNorm, Norm, draw_candidates, judge
from fedface_flwr.seeding import derive_seed
from fedface_flwr.training.tasks import TrainResult
from strategies.fedavg import FedAvg

TRY_AGAIN = 1.0
"""Seconds after a validation round without scores until the next."""

Scores = dict[str, npt.NDArray[np.float64]]


def make_norm(options: FvConfig) -> Norm:
    """Return the configured score norm."""
    if options.norm == "local":
        return LocalNorm(options.epsilon)
    return MovingNorm(options.gamma, options.epsilon) if options.norm == "moving" else NoNorm()


@dataclass(frozen=True)
class Snapshot:
    """The frozen copy that one validation round works on: the latest local models, and the last round that is over."""

    round: int
    models: Mapping[str, ModelState]


class ValidatedWeights(FedAvg):
    """Adds Federated Validation to a method that averages.

    In ``async`` mode validation rounds repeat in a thread of their own while trainers train; a training round takes
    the weights as it finds them and never waits. In ``sync`` mode a validation round follows every ``fv.every`` rounds,
    so that the run is a function of its seed.
    """

    def first_models(self, first: ModelState) -> dict[str, ModelState]:
        """Set up the search for weights as well."""
        options = self.config.fv
        self._norm = make_norm(options)
        self._generator = np.random.default_rng(derive_seed(self.config.seed, "candidates", self.half))
        self._local: dict[str, ModelState] = {}
        self._absorbed = 0
        self._begun = self._validations = 0
        self._stop = threading.Event()
        self._trained = threading.Event()
        self._failure: BaseException | None = None
        return super().first_models(first)

    @contextmanager
    def beside_rounds(self) -> Iterator[None]:
        """Run validation rounds in a thread in async mode; a failure there ends the run."""
        if self.config.fv.mode == "sync":
            yield
            return
        thread = threading.Thread(target=self._repeat, name="federated-validation", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._trained.set()
            thread.join()
        self._raise_failure()
        if not self._validations:
            message = "no validation round finished: the averaging weights never moved; use fv.mode=sync or more rounds"
            self.emit({"event": "warning", "message": message})

    def on_result(self, trainer: str, result: TrainResult) -> None:
        """Keep the local model in the place of the silo's one before: the server never holds two of one silo."""
        with self.lock:
            self._local[trainer] = result.model

    def on_rejected(self, trainer: str) -> None:
        """Score without a silo whose latest model the round did not take."""
        with self.lock:
            self._local.pop(trainer, None)

    def absorb(self, results: Mapping[str, TrainResult], rate: float) -> dict[str, float]:
        """Average, and let validation begin."""
        used = super().absorb(results, rate)
        if self.config.fv.mode == "sync":
            # Of this round alone: what validation works on is then a function of the round's replies.
            self._local = {name: self._local[name] for name in results}
        self._absorbed = self.round
        self._trained.set()
        return used

    def after_round(self) -> None:
        """Validate in sync mode; in async mode look whether the thread is well."""
        self._raise_failure()
        if self.config.fv.mode == "sync" and self.round % self.config.fv.every == 0:
            start = time.perf_counter()
            self._validate()
            self.seconds["validation"] += time.perf_counter() - start

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _repeat(self) -> None:
        try:
            self._trained.wait()
            while not self._stop.is_set():
                if not self._validate():
                    self._stop.wait(TRY_AGAIN)
        except BaseException as error:
            # Raised again in the main thread, which is the one that can end the run.
            self._failure = error

    def _validate(self) -> bool:
        """Run one validation round: draw, average, score, judge; move the weights. Return whether any score came."""
        began = time.perf_counter()
        with self.lock:
            snapshot, weights = Snapshot(self._absorbed, dict(self._local)), self.weights
        if weights is None or not snapshot.models:
            # No silo has a model to weigh yet; with a round that takes one this passes.
            return False
        candidates = draw_candidates(weights, self.config.fv.candidates, self._generator)
        self._begun += 1
        number = self._begun
        round_of_scores = ScoringRound(self, number, self._average(snapshot, candidates), self._stop)
        scores = round_of_scores.run()
        if scores is None:
            return False
        verdict = judge(self._norm, weights, candidates, scores, self.config.fv.phi)
        with self.lock:
            self._norm, self.weights = verdict.norm, verdict.weights
        self._validations += 1
        self.emit(
            {
                "event": "validation",
                "validation": number,
                "round": snapshot.round,
                "training_round": self.round if self.config.fv.mode == "async" else 0,
                "candidates": candidates,
                "scores": scores,
                "normalised": verdict.normalised,
                "best": verdict.best,
                "weights": self.weights_by_name,
                "seconds": time.perf_counter() - began,
                "bytes_down": round_of_scores.bytes_down,
                "bytes_up": 0,
            }
        )
        return True

    def _average(self, snapshot: Snapshot, candidates: npt.NDArray[np.float64]) -> list[dict[str, Array]]:
        """Return each candidate average, serialised: parameters and statistics by the same weights."""
        present = [i for i, name in enumerate(self.config.trainers) if name in snapshot.models]
        models = [snapshot.models[self.config.trainers[i]] for i in present]
        shares = candidates
        if len(present) < len(self.config.trainers):
            shares = candidates[:, present] / candidates[:, present].sum(axis=1, keepdims=True)
        averages = np.empty((len(candidates), self.layout.num_values), dtype=np.float32)
        combine([model.values for model in models], shares, averages)
        counters = aggregate_counters([model.counters for model in models])
        serialise = Serialiser()
        return [serialise(model_arrays(ModelState(values, counters))) for values in averages]

    def saved_values(self) -> dict[str, Any]:
        """Return the state of the search for weights as well."""
        values = super().saved_values()
        with self.lock:
            statistics = getattr(self._norm, "statistics", {})
            fv = {
                "statistics": {name: list(pair) for name, pair in statistics.items()},
                "generator": self._generator.bit_generator.state,
                "begun": self._begun,
                "validations": self._validations,
            }
        return {**values, "fv": fv}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> None:
        """Take what was saved; in async mode validators have since answered more rounds than were saved."""
        super().restore(arrays, values)
        saved = values["fv"]
        if isinstance(self._norm, MovingNorm):
            self._norm = replace(self._norm, statistics={n: (m, v) for n, (m, v) in saved["statistics"].items()})
        self._generator.bit_generator.state = saved["generator"]
        self._begun, self._validations = saved["begun"], saved["validations"]
        if self.config.fv.mode == "async":
            self._begun = max(self._begun, values.get("validations_seen", 0)) + 1


class ScoringRound:
    """Every validator scores every candidate; each works through them in order, a few messages ahead.

    Parameters
    ----------
    loop : ValidatedWeights
        Whose validators, link and options are used.
    number : int
        The validation round's, from 1.
    candidates : list of dict of str to Array
        The candidate models, serialised.
    stop : threading.Event
        Ends the round early.
    """

    def __init__(
        self, loop: ValidatedWeights, number: int, candidates: list[dict[str, Array]], stop: threading.Event
    ) -> None:
        self._loop, self._number, self._candidates, self._stop = loop, number, candidates, stop
        self._todo = {name: deque(range(len(candidates))) for name in loop.config.data.scorers}
        self._open: dict[str, tuple[str, int]] = {}
        self._scores: dict[str, dict[int, float]] = {name: {} for name in self._todo}
        self.bytes_down = 0

    def run(self) -> Scores | None:
        """Return each validator's scores in percent, or None if stopped or none came; one that fails is left out.

        Raises
        ------
        ProtocolError
            If no validator scored all candidates, in the run's first validation round, with each one's reason: later
            ones may be out of reach for a while.
        """
        federation = self._loop.config.federation
        deadline = time.monotonic() + federation.round_timeout
        faults: dict[str, str] = {}
        while self._push_more() or self._open:
            if self._stop.is_set():
                return None
            if time.monotonic() > deadline:
                late = {name for name, _ in self._open.values()}
                faults |= dict.fromkeys(late, f"no score within {federation.round_timeout:g} s")
                break
            replies = self._loop.link.pull(self._open)
            for reply in replies:
                self._take(self._open.pop(reply.metadata.reply_to_message_id), reply, faults)
            if not replies:
                time.sleep(federation.poll)
        return self._complete(faults)

    def _push_more(self) -> bool:
        """Keep ``federation.depth`` messages with each validator; return whether any were sent."""
        sent = False
        for name, todo in self._todo.items():
            ahead = sum(party == name for party, _ in self._open.values())
            for _ in range(min(len(todo), self._loop.config.federation.depth - ahead)):
                self._push(name, todo.popleft())
                sent = True
        return sent

    def _push(self, name: str, candidate: int) -> None:
        scalars: Any = write_evaluate(name, self._loop.half, self._loop.layout, "validation", self._number)
        message = self._loop.link.message(
            name, MessageType.EVALUATE, self._candidates[candidate], scalars, f"candidate-{candidate}"
        )
        self.bytes_down += num_bytes(message.content)
        self._open[self._loop.link.push(message)] = (name, candidate)

    def _take(self, sent: tuple[str, int], reply: Message, faults: dict[str, str]) -> None:
        name, candidate = sent
        try:
            self._scores[name][candidate] = read_figures(read_reply(reply)[1], SCORE_FIGURES)["score"]
        except ProtocolError as error:
            faults[name] = str(error)
            self._todo[name].clear()

    def _complete(self, faults: Mapping[str, str]) -> Scores | None:
        count = len(self._candidates)
        scores = {
            name: np.array([given[t] for t in range(count)])
            for name, given in self._scores.items()
            if name not in faults and len(given) == count
        }
        reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(faults.items()))
        if not scores and self._number == 1:
            raise ProtocolError(f"no validator scored the candidates ({reasons})")
        if faults:
            what = "goes on without" if scores else "is left out for want of"
            self._loop.emit({"event": "warning", "message": f"validation {self._number} {what} {reasons}"})
        return scores or None
