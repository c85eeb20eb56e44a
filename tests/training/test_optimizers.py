# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedface_flwr.training.optimizers import pfm, sgd

SHAPES = ((3, 4), (5,), (2, 1, 3, 3))


def drawn(seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for shape in SHAPES]


def set_gradients(parameters: list[nn.Parameter], step: int) -> list[Tensor]:
    gradients = drawn(1000 + step, parameters[0].dtype)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return gradients


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_pfm_is_its_formula_at_every_step(decay: float, beta: float, dtype: torch.dtype, tolerance: float) -> None:
    parameters, momentum, steps = [nn.Parameter(t) for t in drawn(1, dtype)], drawn(2, dtype), 5
    expected = drawn(1, torch.float64)
    received = [m.clone() for m in momentum]
    optimizer = pfm(parameters, received, rate=0.05, beta=beta, steps=steps, weight_decay=decay)
    for step in range(steps):
        gradients = set_gradients(parameters, step)
        optimizer.step()
        for theta, g, m in zip(expected, gradients, momentum, strict=True):
            theta -= 0.05 * (g.double() + decay * theta + beta * m.double() / steps)
        for parameter, theta in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.detach().double(), theta, rtol=0, atol=tolerance)


def test_pfm_by_hand() -> None:
    # 1 - 0.1 * (0.5 + 0.9 * 2 / 3) = 0.89, then 0.89 - 0.1 * (-0.5 + 0.6) = 0.88.
    parameter = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    server = [torch.tensor([2.0], dtype=torch.float64)]
    optimizer = pfm([parameter], server, rate=0.1, beta=0.9, steps=3, weight_decay=0.0)
    for gradient, reached in ((0.5, 0.89), (-0.5, 0.88)):
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        assert parameter.item() == pytest.approx(reached, rel=1e-14)


def test_steps_change_the_server_momentum_by_no_bit() -> None:
    parameters, momentum = [nn.Parameter(t) for t in drawn(1)], drawn(2)
    kept = [m.clone() for m in momentum]
    optimizer = pfm(parameters, momentum, rate=0.05, beta=0.9, steps=4, weight_decay=0.1)
    scaled = [m.clone() for m in momentum]
    for step in range(4):
        set_gradients(parameters, step)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(momentum, scaled, strict=True))
    buffers = [optimizer.state[p]["momentum_buffer"] for p in parameters]
    for buffer, m in zip(buffers, kept, strict=True):
        torch.testing.assert_close(buffer, m * 0.9 / 4, rtol=1e-15, atol=0)


def test_pfm_without_momentum_is_plain_sgd() -> None:
    ours, plain = ([nn.Parameter(t) for t in drawn(1)] for _ in range(2))
    optimizer = pfm(
        ours, [torch.zeros(s, dtype=torch.float64) for s in SHAPES], rate=0.1, beta=0.9, steps=2, weight_decay=0.01
    )
    reference = torch.optim.SGD(plain, lr=0.1, weight_decay=0.01)
    for step in range(2):
        set_gradients(ours, step)
        set_gradients(plain, step)
        optimizer.step()
        reference.step()
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("given", [False, True], ids=["from zero", "going on"])
def test_sgd_is_its_formula_at_every_step(decay: float, given: bool) -> None:
    parameters, expected = [nn.Parameter(t) for t in drawn(1)], drawn(1)
    buffers = drawn(3) if given else None
    momentum = drawn(3) if given else [torch.zeros(s, dtype=torch.float64) for s in SHAPES]
    optimizer = sgd(parameters, rate=0.05, momentum=0.9, weight_decay=decay, buffers=buffers)
    for step in range(6):
        gradients = set_gradients(parameters, step)
        optimizer.step()
        for theta, g, m in zip(expected, gradients, momentum, strict=True):
            m.mul_(0.9).add_(g + decay * theta)
            theta -= 0.05 * m
        for parameter, theta in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.detach(), theta, rtol=0, atol=1e-13)
    if buffers is not None:
        for buffer, m in zip(buffers, momentum, strict=True):
            torch.testing.assert_close(buffer, m, rtol=0, atol=1e-13)


def test_sgd_cut_in_two_by_its_buffers_goes_on_with_the_same_bits() -> None:
    whole, halves = ([nn.Parameter(t) for t in drawn(1)] for _ in range(2))
    zeros, carried = ([torch.zeros(s, dtype=torch.float64) for s in SHAPES] for _ in range(2))
    optimizer = sgd(whole, rate=0.1, momentum=0.9, weight_decay=0.01, buffers=zeros)
    for step in range(6):
        if step % 3 == 0:
            half = sgd(halves, rate=0.1, momentum=0.9, weight_decay=0.01, buffers=carried)
        set_gradients(whole, step)
        set_gradients(halves, step)
        optimizer.step()
        half.step()
    assert all(torch.equal(a, b) for a, b in zip(whole, halves, strict=True))


@pytest.mark.parametrize("number", [2, 4])
def test_buffers_must_be_one_a_parameter(number: int) -> None:
    parameters, buffers = [nn.Parameter(t) for t in drawn(1)], (drawn(2) * 2)[:number]
    with pytest.raises(ValueError, match="zip"):
        sgd(parameters, rate=0.1, momentum=0.9, weight_decay=0.0, buffers=buffers)
    with pytest.raises(ValueError, match="zip"):
        pfm(parameters, buffers, rate=0.1, beta=0.9, steps=2, weight_decay=0.0)
