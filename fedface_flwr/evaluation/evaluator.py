# SPDX-License-Identifier: Apache-2.0
"""What a party that owns verification pairs computes: a candidate's score, and the final test."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from fedface_flwr.config import Config
from fedface_flwr.data.sets import PairSet
from fedface_flwr.data.sources import pair_set
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.embedding import embed, score_pairs
from fedface_flwr.evaluation.tasks import EvaluateTask
from fedface_flwr.evaluation.verification import (
    FOLDS,
    Verification,
    half_folds,
    pair_distances,
    spread_over_folds,
    verify,
)
from fedface_flwr.federation.layout import Layout
from fedface_flwr.training.backbone import PRECISIONS, build_backbone, resolve_device
from fedface_flwr.training.flat import FlatModel


class Evaluator:
    """One party's verification pack and a backbone to load models into.

    Parameters
    ----------
    config : Config
        The run's configuration.
    pack : str
        The pack's name, as configured.
    cache : Path
        Where decoded images may be kept.
    path : str
        Where the pack lies, whatever the configuration says; empty: where it says.

    Raises
    ------
    DataError
        If the pack is missing or damaged.
    """

    def __init__(self, config: Config, pack: str, cache: Path, path: str = "") -> None:
        self._config = config
        self._pairs = pair_set(config, pack, cache, path)
        self._check_folds(pack in config.data.validators and config.strategy.federated_validation)
        self._device = resolve_device(config.federation.device)
        self._model = FlatModel(build_backbone(config.model).to(self._device))
        # On a CPU a small batch's activations stay in the cache: 1.5 times as many images a second as 256 at a time.
        self._batch_size = 64 if self._device.type == "cpu" else 512

    @property
    def layout(self) -> Layout:
        """How the backbone lies in a flat vector."""
        return self._model.layout

    def _check_folds(self, scores: bool) -> None:
        """Find out now, before anyone trains, whether the pack's halves can be tested on, and scored by."""
        same = self._pairs.same
        try:
            for half in ("first", "second"):
                folds, others = half_folds(half)
                verify(np.zeros(len(same)), same, test_folds=others)
                if scores:
                    chosen = spread_over_folds(len(same), folds, self._config.fv.pairs)
                    verify(np.zeros(len(chosen)), same[chosen], folds=len(folds))
        except DataError as error:
            raise DataError(f"verification pack {self._pairs.name}: {error}") from error

    @property
    def num_pairs(self) -> int:
        """Number of pairs in the pack."""
        return len(self._pairs)

    def evaluate(self, task: EvaluateTask) -> dict[str, float]:
        """Return the named figures of one task, ``seconds`` of computing among them."""
        self._model.load(task.model)
        pairs = self._pairs
        start = time.perf_counter()
        figures = self._score(pairs, task.half) if task.purpose == "validation" else self._test(pairs, task.half)
        return {**figures, "seconds": time.perf_counter() - start}

    def _score(self, pairs: PairSet, half: str) -> dict[str, float]:
        """Score a candidate in percent: accuracy over five folds, each at the best threshold of the other four."""
        options = self._config.fv
        folds, _ = half_folds(half)
        chosen = spread_over_folds(len(pairs), folds, options.pairs)
        images = pairs.images.reshape(len(pairs), 2, *pairs.images.shape[1:])[chosen]
        embeddings = embed(
            self._model.module,
            images.reshape(-1, *images.shape[2:]),
            batch_size=self._batch_size,
            flip=options.flip,
            device=self._device,
            precision=PRECISIONS[self._config.training.precision],
        )
        try:
            result = verify(pair_distances(embeddings), pairs.same[chosen], folds=len(folds))
        except DataError as error:
            raise DataError(f"verification pack {pairs.name}: {error}") from error
        return {"score": 100 * result.accuracy}

    def _test(self, pairs: PairSet, half: str) -> dict[str, float]:
        """Report as the field does, on the five folds that validation never saw; thresholds from the other nine."""
        _, folds = half_folds(half)
        return figures(
            score_pairs(
                self._model.module,
                pairs,
                test_folds=folds,
                threshold_folds=range(FOLDS),
                batch_size=self._batch_size,
                device=self._device,
            )
        )


def figures(result: Verification) -> dict[str, float]:
    """Return a verification's scalars under the names that messages and summaries use."""
    tar = {f"tar_at_far_{far:.0e}".replace("e-0", "e-"): value for far, value in result.tar_at_far.items()}
    return {
        "accuracy": result.accuracy,
        "accuracy_std": result.accuracy_std,
        **tar,
        "auc": result.auc,
        "pairs": float(result.pairs),
    }
