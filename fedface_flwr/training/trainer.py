# SPDX-License-Identifier: Apache-2.0
"""One party's training: K local steps on the backbone and the private heads, from a received model to a reply."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from fedface_flwr.config import Config
from fedface_flwr.data.sets import ImageSet
from fedface_flwr.errors import TrainingError
from fedface_flwr.federation.layout import Layout
from fedface_flwr.seeding import derive_seed
from fedface_flwr.training.backbone import autocast, build_backbone, resolve_device
from fedface_flwr.training.branch import Branch, to_device
from fedface_flwr.training.flat import FlatModel, as_tensor
from fedface_flwr.training.optimizers import pfm, sgd
from fedface_flwr.training.store import SiloStore
from fedface_flwr.training.tasks import BranchResult, TrainResult, TrainTask

Batch = list[tuple[Tensor, Tensor]]


class Trainer:
    """The backbone and heads of one training party.

    Parameters
    ----------
    config : Config
        The run's configuration.
    party : str
        The party's name.
    sets : sequence of ImageSet
        One for a silo, several for the pooled baseline.
    store : SiloStore
        Where the heads live between rounds.
    """

    def __init__(self, config: Config, party: str, sets: Sequence[ImageSet], store: SiloStore) -> None:
        self._config = config
        self._party = party
        self._store = store
        self._device = resolve_device(config.federation.device)
        self._model = FlatModel(build_backbone(config.model).to(self._device))
        shares = config.strategy.branch_weights if config.strategy.pooled else ()
        self._branches = [
            Branch(config, name, images, share, self._device)
            for name, images, share in zip(
                config.sets_of(party), sets, shares or [1 / len(sets)] * len(sets), strict=True
            )
        ]
        # A silo's own momentum of the backbone; with PFM, the server's, received anew for each round.
        self._momentum = torch.zeros(self._model.layout.num_parameters, device=self._device)
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=config.training.precision == "float16")

    @property
    def layout(self) -> Layout:
        """How the backbone lies in a flat vector."""
        return self._model.layout

    @property
    def num_images(self) -> int:
        """Number of training images that this party owns."""
        return sum(branch.num_images for branch in self._branches)

    def train(self, task: TrainTask, *, lend: bool = False) -> TrainResult:
        """Run one round and store the heads; the same task again gives the same result.

        Parameters
        ----------
        task : TrainTask
            The round.
        lend : bool
            Whether the result's model may be the trainer's own memory, which holds until the next task.

        Raises
        ------
        TrainingError
            If the loss is no longer finite.
        StateError
            If the received model does not fit, or the store lacks the state to go on from.
        """
        self._restore(task.previous)
        self._model.load(task.model)
        # Dropout draws from the global generator.
        torch.manual_seed(derive_seed(self._config.seed, "round", self._party, task.round))
        start = time.perf_counter()
        losses, hits = self._steps(task)
        seconds = time.perf_counter() - start
        results = self._results(task.round, losses, hits)
        self._save(task)
        model = self._model.view() if lend else self._model.state()
        return TrainResult(model, results, self.num_images, seconds)

    def _steps(self, task: TrainTask) -> tuple[Tensor, Tensor]:
        """Take the K steps; return losses and accuracies, both of shape (K, branches)."""
        self._model.module.train()
        optimizers = [self._backbone_optimizer(task), *(b.optimizer(task.rate) for b in self._branches)]
        steps = [self._step(batch, optimizers) for batch in self._batches(task.round)]
        losses, hits = (torch.stack(values).cpu() for values in zip(*steps, strict=True))
        return losses, hits

    def _step(self, batch: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> tuple[Tensor, Tensor]:
        images = to_device(torch.cat([pixels for pixels, _ in batch]), self._device)
        with autocast(self._device, self._config.training.precision):
            embeddings = self._model.module(images)
        parts = embeddings.split([len(labels) for _, labels in batch])
        pairs = [
            branch.loss(part, labels.to(self._device, non_blocking=True))
            for branch, part, (_, labels) in zip(self._branches, parts, batch, strict=True)
        ]
        losses, hits = (torch.stack(values) for values in zip(*pairs, strict=True))
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(losses.sum()).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            self._scaler.step(optimizer)
        self._scaler.update()
        return losses.detach(), hits

    def _batches(self, number: int) -> Iterator[Batch]:
        """Yield the round's batches, each read while the step before it is computed."""
        count = self._config.training.steps_per_round
        first = (number - 1) * count

        def read(step: int) -> Batch:
            return [branch.batch(step) for branch in self._branches]

        with ThreadPoolExecutor(max_workers=1) as reader:
            ahead = reader.submit(read, first)
            for step in range(first + 1, first + count):
                batch, ahead = ahead.result(), reader.submit(read, step)
                yield batch
            yield ahead.result()

    def _backbone_optimizer(self, task: TrainTask) -> torch.optim.Optimizer:
        options = self._config.optimizer
        parameters = list(self._model.module.parameters())
        if task.momentum is None:
            return sgd(
                parameters,
                rate=task.rate,
                momentum=options.momentum,
                weight_decay=options.weight_decay,
                buffers=self._model.parameter_views(self._momentum),
            )
        self._momentum.copy_(as_tensor(task.momentum))
        return pfm(
            parameters,
            self._model.parameter_views(self._momentum),
            rate=task.rate,
            beta=options.momentum,
            steps=self._config.training.steps_per_round,
            weight_decay=options.weight_decay,
        )

    def _results(self, number: int, losses: Tensor, hits: Tensor) -> dict[str, BranchResult]:
        if not bool(torch.isfinite(losses).all()):
            step = int((~torch.isfinite(losses).all(dim=1)).nonzero()[0]) + 1
            raise TrainingError(
                f"{self._party}: the loss is no longer finite in round {number}, step {step}; "
                "lower optimizer.rate, head.scale or head.margin"
            )
        return {
            branch.name: BranchResult(
                loss=float(losses[:, i].mean()),
                accuracy=float(hits[:, i].mean()),
                loss_ema=branch.record(losses[:, i].tolist()),
            )
            for i, branch in enumerate(self._branches)
        }

    def _restore(self, number: int) -> None:
        self._momentum.zero_()
        if number == 0:
            for branch in self._branches:
                branch.reset()
            return
        state = self._store.load(number)
        for branch in self._branches:
            branch.load(state)
        if self._config.strategy.keep_momentum:
            self._momentum.copy_(torch.from_numpy(state["backbone.momentum"]))
        if self._scaler.is_enabled():
            self._scaler.load_state_dict({**self._scaler.state_dict(), **_unpack(state["scaler"])})

    def _save(self, task: TrainTask) -> None:
        state = {name: array for branch in self._branches for name, array in branch.state().items()}
        if self._config.strategy.keep_momentum:
            state["backbone.momentum"] = self._momentum.cpu().numpy()
        if self._scaler.is_enabled():
            scaler = self._scaler.state_dict()
            state["scaler"] = np.array([scaler["scale"], scaler["_growth_tracker"]])
        self._store.save(task.round, state, task.oldest)


def _unpack(scaler: np.ndarray) -> dict[str, float | int]:
    return {"scale": float(scaler[0]), "_growth_tracker": int(scaler[1])}
