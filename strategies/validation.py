# SPDX-License-Identifier: Apache-2.0
"""Federated Validation (arXiv 2105.02501, section 3.3) as messages: beside the rounds, or between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.config import FvConfig
from fedface_flwr.federation.aggregation import aggregate_counters, combine
from fedface_flwr.federation.difference import AnchoredModel
from fedface_flwr.federation.layout import ModelState
from fedface_flwr.federation.validation import LocalNorm, MovingNorm, NoNorm, Norm, draw_candidates, judge
from fedface_flwr.seeding import derive_seed
from fedface_flwr.training.tasks import TrainResult
from strategies.anchor import Anchor
from strategies.fedavg import FedAvg
from strategies.scoring import ScoringRound

TRY_AGAIN, LONGEST_PAUSE = 1.0, 60.0
"""Seconds after a validation round without scores until the next, doubled each time up to the latter: each uses up a
number, of which validators answer only so many."""


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
        sends_differences = self.config.sends_differences
        self._anchor = Anchor(self.layout.num_parameters, self.config.wire.dtype) if sends_differences else None
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
            pause = TRY_AGAIN
            while not self._stop.is_set():
                if self._validate():
                    pause = TRY_AGAIN
                else:
                    self._stop.wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
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
        models = self._average(number, snapshot, candidates)
        round_of_scores = ScoringRound(self, number, models, self._anchor, self._stop)
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

    def _average(
        self, number: int, snapshot: Snapshot, candidates: npt.NDArray[np.float64]
    ) -> list[ModelState] | list[AnchoredModel]:
        """Return each candidate average as it travels: parameters and statistics by the same weights."""
        present = [i for i, name in enumerate(self.config.trainers) if name in snapshot.models]
        models = [snapshot.models[self.config.trainers[i]] for i in present]
        shares = candidates
        if len(present) < len(self.config.trainers):
            shares = candidates[:, present] / candidates[:, present].sum(axis=1, keepdims=True)
        averages = np.empty((len(candidates), self.layout.num_values), dtype=np.float32)
        combine([model.values for model in models], shares, averages)
        counters = aggregate_counters([model.counters for model in models])
        if self._anchor is None:
            return [ModelState(values, counters) for values in averages]
        return list(self._anchor.encode(number, averages, counters))

    def saved_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the anchor as well, in sync mode; in async mode it may be replaced meanwhile, and is begun anew."""
        kept = self._anchor if self.config.fv.mode == "sync" else None
        return {**super().saved_arrays(), **(kept.saved_arrays() if kept else {})}

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
                "anchor": self._anchor.saved_values() if self._anchor else {},
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
        if self._anchor is not None and self.config.fv.mode == "sync":
            self._anchor.restore(arrays, saved["anchor"])
        if self.config.fv.mode == "async":
            self._begun = max(self._begun, values.get("validations_seen", 0)) + 1
