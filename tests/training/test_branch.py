# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tiny import tiny_config, tiny_set
from torch.nn import functional as F

from fedface_flwr.config import Config
from fedface_flwr.data.sampler import EpochSampler
from fedface_flwr.models.heads import CosFace
from fedface_flwr.seeding import derive_seed
from fedface_flwr.training.branch import Branch, to_device

CPU = torch.device("cpu")


def branch(config: Config | None = None, *, weight: float = 1.0, name: str = "alpha") -> Branch:
    return Branch(config or tiny_config(), name, tiny_set(name), weight, CPU)


def embeddings(seed: int = 0) -> torch.Tensor:
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))


LABELS = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])


def step(subject: Branch, rate: float = 0.1, seed: int = 0) -> float:
    optimizer = subject.optimizer(rate)
    optimizer.zero_grad(set_to_none=True)
    loss, _ = subject.loss(embeddings(seed).requires_grad_(), LABELS)
    loss.backward()
    optimizer.step()
    return loss.item()


def test_first_head_is_a_function_of_seed_and_name() -> None:
    heads = [
        branch(tiny_config(f"seed={seed}"), name=name).state()[f"{name}.head"]
        for seed, name in ((0, "alpha"), (0, "alpha"), (1, "alpha"), (0, "beta"))
    ]
    assert heads[0].shape == (5, 8)
    np.testing.assert_array_equal(heads[0], heads[1])
    assert not np.isclose(heads[0], heads[2]).all()
    assert not np.isclose(heads[0], heads[3]).all()


def test_first_state_has_no_momentum_and_no_loss() -> None:
    state = branch().state()
    assert set(state) == {"alpha.head", "alpha.momentum", "alpha.smoothed_loss", "alpha.steps"}
    assert not state["alpha.momentum"].any()
    assert state["alpha.smoothed_loss"].tolist() == [0.0]
    assert state["alpha.steps"].tolist() == [0]


@pytest.mark.parametrize("flip", [0.0, 0.5, 1.0])
def test_a_batch_is_the_samplers_images_flipped_by_the_steps_own_stream(flip: float) -> None:
    config = tiny_config(f"training.flip={flip}")
    images, subject = tiny_set(), branch(config)
    for number in (0, 1, 7):
        indices = EpochSampler(20, 8, derive_seed(0, "sampler", "alpha")).batch(number)
        plain = images.images(indices)
        stream = torch.Generator().manual_seed(derive_seed(0, "flip", "alpha", number))
        mirrored = (torch.rand(8, generator=stream) < flip).numpy()
        assert {0.0: not mirrored.any(), 0.5: True, 1.0: mirrored.all()}[flip]
        expected = np.stack([p[:, :, ::-1] if m else p for p, m in zip(plain, mirrored, strict=True)])
        pixels, labels = subject.batch(number)
        np.testing.assert_array_equal(pixels.numpy(), expected)
        np.testing.assert_array_equal(labels.numpy(), images.labels[indices])
        assert (pixels.dtype, labels.dtype) == (torch.uint8, torch.int64)


def test_batches_do_not_depend_on_order_and_differ_by_step_and_seed() -> None:
    subject, other = branch(), branch(tiny_config("seed=1"))
    late, early = subject.batch(5), subject.batch(0)
    assert torch.equal(branch().batch(0)[0], early[0])
    assert not torch.equal(early[0], late[0])
    assert not torch.equal(other.batch(0)[0], early[0])


def test_flips_differ_from_step_to_step() -> None:
    subject, plain = branch(), branch(tiny_config("training.flip=0.0"))
    flipped = [tuple((subject.batch(i)[0] != plain.batch(i)[0]).any(dim=(1, 2, 3)).tolist()) for i in range(6)]
    assert len(set(flipped)) > 1
    assert 10 < sum(map(sum, flipped)) < 38


def test_loss_is_the_cross_entropy_with_margin_and_accuracy_is_without_it() -> None:
    subject = branch()
    weight = torch.from_numpy(subject.state()["alpha.head"])
    cosine = F.normalize(embeddings()) @ F.normalize(weight).T
    # The default head is CosFace with scale 16 and margin 0.1.
    logits = 16 * (cosine - 0.1 * F.one_hot(LABELS, 5))
    expected = -torch.log_softmax(logits, dim=1)[torch.arange(8), LABELS].mean()
    loss, accuracy = subject.loss(embeddings(), LABELS)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    assert accuracy.item() == (cosine.argmax(dim=1) == LABELS).float().mean().item()


def test_the_head_is_the_configured_one() -> None:
    changed = {
        kind: branch(tiny_config(f"head={kind}")).loss(embeddings(), LABELS)[0].item()
        for kind in ("arcface", "cosface")
    }
    weight = torch.from_numpy(branch().state()["alpha.head"])
    head = CosFace(8, 5, 64.0, 0.35)
    head.weight.data = weight
    assert changed["cosface"] == pytest.approx(F.cross_entropy(head(embeddings(), LABELS)[0], LABELS).item(), rel=1e-6)
    assert changed["arcface"] != changed["cosface"]


@pytest.mark.parametrize("weight", [1.0, 0.25, 3.0])
def test_weight_scales_what_goes_to_the_backbone_and_nothing_else(weight: float) -> None:
    results = []
    for factor in (1.0, weight):
        subject, inputs = branch(weight=factor), embeddings().requires_grad_()
        optimizer = subject.optimizer(0.1)
        loss, _ = subject.loss(inputs, LABELS)
        loss.backward()
        optimizer.step()
        assert inputs.grad is not None
        results.append((loss.detach(), inputs.grad, subject.state()["alpha.momentum"]))
    (loss, plain, head), (same_loss, scaled, same_head) = results
    assert torch.equal(loss, same_loss)
    torch.testing.assert_close(scaled, weight * plain, rtol=1e-6, atol=0)
    np.testing.assert_array_equal(head, same_head)


def test_the_heads_optimizer_is_momentum_sgd_that_goes_on_from_one_optimizer_to_the_next() -> None:
    config = tiny_config("optimizer.weight_decay=0.01")
    subject = branch(config)
    weight = torch.from_numpy(subject.state()["alpha.head"].copy()).double()
    momentum = torch.zeros(5, 8, dtype=torch.float64)
    for number, rate in enumerate((0.1, 0.1, 0.01)):
        leaf = weight.clone().requires_grad_()
        cosine = F.normalize(embeddings(number).double()) @ F.normalize(leaf).T
        loss = F.cross_entropy(16 * (cosine - 0.1 * F.one_hot(LABELS, 5)), LABELS)
        (gradient,) = torch.autograd.grad(loss, leaf)
        momentum = 0.9 * momentum + gradient + 0.01 * weight
        weight = weight - rate * momentum
        assert step(subject, rate, number) == pytest.approx(loss.item(), rel=1e-5)
        np.testing.assert_allclose(subject.state()["alpha.momentum"], momentum, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(subject.state()["alpha.head"], weight, rtol=1e-3, atol=1e-5)


def test_load_brings_back_what_state_returned() -> None:
    first = branch()
    step(first)
    first.record([2.0])
    kept = {name: array.copy() for name, array in first.state().items()}
    second = branch()
    second.load(kept)
    for subject in (first, second):
        step(subject, seed=1)
        subject.record([3.0])
    for name, array in first.state().items():
        np.testing.assert_array_equal(second.state()[name], array)
        assert not np.array_equal(kept[name], array)


def test_loading_does_not_tie_the_branch_to_the_arrays() -> None:
    first = branch()
    step(first)
    kept = {name: array.copy() for name, array in first.state().items()}
    second, untouched = branch(), {name: array.copy() for name, array in kept.items()}
    second.load(kept)
    step(second)
    for name, array in kept.items():
        np.testing.assert_array_equal(array, untouched[name])


def test_reset_goes_back_to_the_start() -> None:
    subject = branch()
    before = {name: array.copy() for name, array in subject.state().items()}
    for _ in range(2):
        step(subject)
        subject.record([1.0])
    subject.reset()
    for name, array in subject.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_smoothed_loss_by_hand() -> None:
    subject = branch(
        dataclasses.replace(tiny_config(), training=dataclasses.replace(tiny_config().training, loss_smoothing=0.5))
    )
    # After 4: 2 / (1 - 1/2) = 4. After 2: (2/2 + 1) / (1 - 1/4) = 8/3. After 6, 8: 4 then 6, over 1 - 1/16.
    assert subject.record([4.0]) == 4.0
    assert subject.record([2.0]) == pytest.approx(8 / 3, rel=1e-15)
    assert subject.record([6.0, 8.0]) == pytest.approx(6.0 / (15 / 16), rel=1e-15)


def test_smoothed_loss_is_the_weighted_mean_of_all_losses() -> None:
    losses = np.random.default_rng(0).uniform(1, 9, 30)
    subject = branch()
    whole = [subject.record(part.tolist()) for part in np.split(losses, 10)]
    for i, value in enumerate(whole):
        seen = losses[: 3 * (i + 1)]
        assert value == pytest.approx(np.average(seen, weights=0.9 ** np.arange(len(seen))[::-1]), rel=1e-12)


def test_no_smoothing_is_the_last_loss() -> None:
    assert branch(tiny_config("training.loss_smoothing=0.0")).record([5.0, 7.0]) == 7.0


def test_pixels_reach_the_device_normalised_and_channels_last() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).repeat(2, 3, 4, 1)
    moved = to_device(pixels, CPU)
    assert moved.dtype is torch.float32
    assert moved.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(moved, torch.tensor([-1.0, -0.6, 1.0]).repeat(2, 3, 4, 1))
