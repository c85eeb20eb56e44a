# SPDX-License-Identifier: Apache-2.0
"""The two local optimizers of a backbone: classical momentum, and Partially Federated Momentum.

Both are torch's fused SGD, which reads and writes each parameter, gradient and buffer once a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def sgd(
    parameters: Sequence[nn.Parameter],
    *,
    rate: float,
    momentum: float,
    weight_decay: float,
    buffers: Sequence[Tensor] | None = None,
) -> torch.optim.SGD:
    """Return SGD with classical momentum: ``m <- beta m + g``, ``theta <- theta - eta m``.

    Parameters
    ----------
    parameters : sequence of Parameter
        What to optimize.
    rate, momentum, weight_decay : float
        ``eta``, ``beta`` and the decay inside the gradient g.
    buffers : sequence of Tensor, optional
        The momentum m to go on from, one of each parameter's shape, changed in place by each step. Without it, m starts
        as the first gradient, which is to start from zero.
    """
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=weight_decay, fused=True)
    if buffers is not None:
        _set_buffers(optimizer, parameters, buffers)
    return optimizer


def pfm(
    parameters: Sequence[nn.Parameter],
    server_momentum: Sequence[Tensor],
    *,
    rate: float,
    beta: float,
    steps: int,
    weight_decay: float,
) -> torch.optim.SGD:
    """Return the optimizer of ``theta <- theta - eta (g + beta M / K)`` with M fixed (arXiv 2105.02501, section 3.2).

    Nesterov's update is ``g + mu b`` with the buffer ``b <- mu b + (1 - d) g``. At ``mu = 1`` and full dampening
    ``d = 1`` the buffer never changes, so that with ``b = beta M / K`` each step is PFM's, in the one pass over memory
    of torch's fused kernel.

    Parameters
    ----------
    parameters : sequence of Parameter
        Backbone parameters.
    server_momentum : sequence of Tensor
        ``M_{r-1}``, one tensor of each parameter's shape; scaled in place to the buffer.
    rate : float
        ``eta_r``, constant through the round.
    beta : float
        Momentum coefficient.
    steps : int
        Local steps K of the round.
    weight_decay : float
        Decay inside the gradient g.
    """
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=1.0, nesterov=True, weight_decay=weight_decay, fused=True)
    # torch's constructor refuses this pair of options, its step does not: elsewhere it makes no sense.
    optimizer.param_groups[0]["dampening"] = 1.0
    _set_buffers(optimizer, parameters, [m.mul_(beta / steps) for m in server_momentum])
    return optimizer


def _set_buffers(optimizer: torch.optim.SGD, parameters: Sequence[nn.Parameter], buffers: Sequence[Tensor]) -> None:
    for parameter, buffer in zip(parameters, buffers, strict=True):
        optimizer.state[parameter]["momentum_buffer"] = buffer
