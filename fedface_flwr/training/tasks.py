# SPDX-License-Identifier: Apache-2.0
"""What a trainer is asked and what it answers, without the means to do it."""

from __future__ import annotations

from dataclasses import dataclass

from fedface_flwr.federation.difference import FullModel, GlobalChange
from fedface_flwr.federation.layout import ModelState, Vector


@dataclass(frozen=True)
class TrainTask:
    """What the server asks of a trainer for one round.

    Attributes
    ----------
    round : int
        Number of the round, from 1.
    rate : float
        Learning rate ``eta_r``, constant through the round.
    model : ModelState
        The backbone to start from.
    momentum : ndarray of float32, shape (parameters,), or None
        The server's momentum ``M_{r-1}``; None for classical momentum.
    previous : int
        The last round of this trainer that the server took, 0 for none: the head goes on from there, for what the
        server did not take, by a late or lost reply, is no part of the run.
    oldest : int
        The earliest of its rounds that the server may come back to; what is older may be dropped.
    """

    round: int
    rate: float
    model: ModelState
    momentum: Vector | None
    previous: int
    oldest: int = 0


@dataclass(frozen=True)
class TrainOrder:
    """A :class:`TrainTask` as it travels: with what the trainer needs to make the model, instead of the model.

    Attributes
    ----------
    round, rate, previous, oldest : int, float, int, int
        As in the task.
    download : FullModel or GlobalChange
        What the trainer makes model and momentum from.
    """

    round: int
    rate: float
    previous: int
    oldest: int
    download: FullModel | GlobalChange


@dataclass(frozen=True)
class BranchResult:
    """Figures of one set over a round: mean loss, margin-free accuracy in [0, 1], exponentially smoothed loss."""

    loss: float
    accuracy: float
    loss_ema: float


@dataclass(frozen=True)
class TrainResult:
    """The backbone after K steps, the figures by set, the number of images owned, and the seconds of the K steps."""

    model: ModelState
    branches: dict[str, BranchResult]
    num_images: int
    seconds: float
