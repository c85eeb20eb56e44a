# SPDX-License-Identifier: Apache-2.0
"""The three exact oracles of the method, on analytic problems in float64, through the project's own code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from fedface_flwr.federation.aggregation import aggregate
from fedface_flwr.federation.validation import LocalNorm, MovingNorm, NoNorm, Norm, judge
from fedface_flwr.training.optimizers import pfm
from fedface_flwr.training.schedule import StepSchedule

Floats = npt.NDArray[np.float64]
Gradient = Callable[[Floats], Floats]

SIZE = 7
BETA = 0.9
ROUNDS = 60


def local_pfm(start: Floats, momentum: Floats, gradient: Gradient, rate: float, steps: int, decay: float) -> Floats:
    parameter = nn.Parameter(torch.from_numpy(start.copy()))
    server = [torch.from_numpy(momentum.copy())]
    optimizer = pfm([parameter], server, rate=rate, beta=BETA, steps=steps, weight_decay=decay)
    for _ in range(steps):
        parameter.grad = torch.from_numpy(gradient(parameter.detach().numpy()))
        optimizer.step()
    return parameter.detach().numpy()


def federated_pfm(
    first: Floats, silos: list[Gradient], weights: Floats, rates: list[float], steps: int, decay: float = 0.0
) -> list[Floats]:
    """Return the global model after each round."""
    model, momentum = first.copy(), np.zeros_like(first)
    path = []
    for rate in rates:
        rows = [local_pfm(model, momentum, gradient, rate, steps, decay) for gradient in silos]
        aggregate(rows, weights, model, momentum, rate)
        path.append(model.copy())
    return path


def quadratics(count: int) -> list[Gradient]:
    """Return gradients of random convex quadratics, one a silo."""
    generator = np.random.default_rng(count)
    gradients = []
    for _ in range(count):
        root = generator.standard_normal((SIZE, SIZE)) / SIZE
        curvature, centre = root @ root.T, generator.standard_normal(SIZE)
        gradients.append(lambda x, a=curvature, c=centre: a @ (x - c))
    return gradients


def constants(count: int) -> list[Gradient]:
    values = np.random.default_rng(count).standard_normal((count, SIZE))
    return [lambda x, g=value: g.copy() for value in values]


FIRST = np.random.default_rng(99).standard_normal(SIZE)
DROPPING = [StepSchedule(0.1, (0.4, 0.7), 0.1, ROUNDS)(r) for r in range(1, ROUNDS + 1)]
CONSTANT = [0.02] * ROUNDS


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("silos", [1, 2, 3, 12])
def test_pfm_of_one_step_equals_central_momentum_sgd_on_the_mean_gradient(silos: int, decay: float) -> None:
    gradients = quadratics(silos)
    assert sorted(set(DROPPING)) == pytest.approx([0.001, 0.01, 0.1])
    federated = federated_pfm(FIRST, gradients, np.full(silos, 1 / silos), DROPPING, steps=1, decay=decay)
    model, momentum = FIRST.copy(), np.zeros(SIZE)
    for rate, reached in zip(DROPPING, federated, strict=True):
        mean = sum(gradient(model) for gradient in gradients) / silos + decay * model
        momentum = BETA * momentum + mean
        model = model - rate * momentum
        np.testing.assert_allclose(reached, model, rtol=0, atol=1e-6)
        np.testing.assert_allclose(reached, model, rtol=1e-10, atol=1e-12)
    assert np.linalg.norm(model - FIRST) > 0.1


def fedavgm(first: Floats, silos: list[Gradient], weights: Floats, rates: list[float], steps: int) -> list[Floats]:
    """Plain local SGD, then the server momentum of Hsu et al., arXiv 1909.06335.

    ``v <- beta v + sum_i w_i (Theta - theta_i)`` and ``Theta <- Theta - v``: no dampening, no Nesterov, server rate 1.
    """
    model, velocity = first.copy(), np.zeros_like(first)
    path = []
    for rate in rates:
        rows = []
        for gradient in silos:
            local = model.copy()
            for _ in range(steps):
                local -= rate * gradient(local)
            rows.append(local)
        velocity = BETA * velocity + sum(w * (model - row) for w, row in zip(weights, rows, strict=True))
        model = model - velocity
        path.append(model)
    return path


@pytest.mark.parametrize("steps", [1, 2, 7, 30])
@pytest.mark.parametrize("weights", [np.ones(1), np.full(3, 1 / 3), np.array([0.7, 0.1, 0.2])], ids=["1", "3", "3w"])
def test_pfm_under_constant_gradients_and_rate_equals_fedavgm(weights: Floats, steps: int) -> None:
    # With local gradients c_i, K steps of PFM lead to Theta - eta (K c_i + beta M), so that the server finds
    # M' = K c + beta M for the weighted mean c. FedAvgM finds v' = eta K c + beta v. Hence v = eta M at constant eta,
    # and both move by it.
    gradients = constants(len(weights))
    ours = federated_pfm(FIRST, gradients, weights, CONSTANT, steps)
    theirs = fedavgm(FIRST, gradients, weights, CONSTANT, steps)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_pfm_and_fedavgm_part_where_the_rate_drops() -> None:
    # FedAvgM's velocity carries the old rate over the drop, PFM's momentum does not.
    gradients, weights = constants(2), np.full(2, 0.5)
    rates = [0.1, 0.1, 0.01]
    ours, theirs = federated_pfm(FIRST, gradients, weights, rates, 4), fedavgm(FIRST, gradients, weights, rates, 4)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-12)
    mean = (gradients[0](FIRST) + gradients[1](FIRST)) / 2
    # M_2 = 4 c (1 + beta), M_3 = 4 c (1 + beta + beta^2); v_3 = 0.01 (4 c) + beta v_2 with v_2 = 0.1 M_2.
    np.testing.assert_allclose(ours[2] - ours[1], -0.01 * 4 * mean * 2.71, rtol=1e-12)
    np.testing.assert_allclose(theirs[2] - theirs[1], -4 * mean * (0.01 + 0.9 * 0.1 * 1.9), rtol=1e-12)


W = np.array([0.5, 0.3, 0.2])
CANDIDATES = np.array([W, [0.9, 0.1, 0.0], [0.1, 0.2, 0.7]])
FIRST_SCORES = {"lfw": np.array([70.0, 70.0, 76.0]), "age": np.array([96.0, 84.0, 90.0])}
SECOND_SCORES = {"lfw": np.array([77.0, 83.0, 80.0]), "age": np.array([86.0, 80.0, 80.0])}


def test_federated_validation_with_local_norm_by_hand() -> None:
    verdict = judge(LocalNorm(epsilon=1.0), W, CANDIDATES, FIRST_SCORES, phi=0.25)
    # lfw: mean 72, variance (4 + 4 + 16) / 3 = 8, divisor sqrt(9); age: mean 90, variance 72 / 3 = 24, divisor 5.
    np.testing.assert_allclose(verdict.normalised["lfw"], [70 / 3, 70 / 3, 76 / 3], rtol=0, atol=1e-12)
    np.testing.assert_allclose(verdict.normalised["age"], [19.2, 16.8, 18.0], rtol=0, atol=1e-12)
    # Sums 42.53, 40.13, 43.33; unnormalised, 166, 154, 166, the first would have won.
    assert verdict.best == 2
    np.testing.assert_allclose(verdict.weights, [0.4, 0.275, 0.325], rtol=0, atol=1e-12)
    assert judge(NoNorm(), W, CANDIDATES, FIRST_SCORES, phi=0.25).best == 0


def test_federated_validation_with_moving_norm_by_hand() -> None:
    first = judge(MovingNorm(gamma=0.5, epsilon=1.0), W, CANDIDATES, FIRST_SCORES, phi=0.25)
    # The first round sets mu and nu, so that it judges as the local norm does.
    assert first.norm == MovingNorm(0.5, 1.0, {"age": (90.0, 24.0), "lfw": (72.0, 8.0)})
    assert first.best == 2
    np.testing.assert_allclose(first.weights, [0.4, 0.275, 0.325], rtol=0, atol=1e-12)

    candidates = np.array([first.weights, [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]])
    second = judge(first.norm, first.weights, candidates, SECOND_SCORES, phi=0.5)
    # lfw: mean 80, mu = 72/2 + 80/2 = 76; deviations from it 1, 7, 4, mean square 22, nu = 8/2 + 22/2 = 15, divisor 4.
    # age: mean 82, mu = 90/2 + 82/2 = 86; deviations from it 0, -6, -6, mean square 24, nu = 24, divisor 5.
    assert second.norm == MovingNorm(0.5, 1.0, {"age": (86.0, 24.0), "lfw": (76.0, 15.0)})
    np.testing.assert_allclose(second.normalised["lfw"], [19.25, 20.75, 20.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(second.normalised["age"], [17.2, 16.0, 16.0], rtol=0, atol=1e-12)
    # Sums 36.45, 36.75, 36.
    assert second.best == 1
    np.testing.assert_allclose(second.weights, [0.3, 0.5375, 0.1625], rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", [LocalNorm(epsilon=1.0), MovingNorm(gamma=0.5, epsilon=1.0)])
def test_federated_validation_takes_the_first_of_equals(norm: Norm) -> None:
    scores = {"lfw": np.array([60.0, 66.0, 66.0]), "age": np.array([70.0, 76.0, 76.0])}
    verdict = judge(norm, W, CANDIDATES, scores, phi=0.1)
    assert verdict.best == 1
    np.testing.assert_allclose(verdict.weights, [0.54, 0.28, 0.18], rtol=0, atol=1e-12)
