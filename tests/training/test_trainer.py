# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import first_model, same_bits, tiny_config, tiny_set
from torch import Tensor
from torch.nn import functional as F

from fedface_flwr.config import Config
from fedface_flwr.data.sampler import EpochSampler
from fedface_flwr.errors import StateError, TrainingError
from fedface_flwr.federation.layout import Kind, ModelState, Vector
from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.seeding import derive_seed
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.branch import to_device
from fedface_flwr.training.flat import FlatModel
from fedface_flwr.training.store import SiloStore
from fedface_flwr.training.tasks import TrainResult, TrainTask
from fedface_flwr.training.trainer import Trainer

SETS = ("alpha", "beta", "gamma")
PLAIN = ("model.dropout=0.0", "training.flip=0.0")
CENTRAL = (*PLAIN, "strategy=central", "training.steps_per_round=1", "optimizer.weight_decay=0.0")


def trainer(config: Config, folder: Path, names: Sequence[str] = ("alpha",)) -> Trainer:
    party = "central" if config.strategy.pooled else names[0]
    return Trainer(config, party, [tiny_set(name) for name in names], SiloStore(folder))


def some_momentum(config: Config, scale: float = 0.1) -> Vector:
    count = FlatModel(build_backbone(config.model)).layout.num_parameters
    return scale * np.random.default_rng(5).standard_normal(count).astype(np.float32)


def run(
    subject: Trainer, config: Config, rounds: int, momentum: Vector | None = None, start: int = 1
) -> list[TrainResult]:
    """Train from round ``start``, each round from the first model, so that only the silo's own state carries over."""
    model = first_model(config)
    return [subject.train(TrainTask(r, 0.1, model, momentum, r - 1)) for r in range(start, start + rounds)]


def same_result(a: TrainResult, b: TrainResult) -> bool:
    return same_bits(a.model, b.model) and a.branches == b.branches and a.num_images == b.num_images


METHODS = {
    "pfm": ("strategy=pfm",),
    "fedavg": ("strategy=fedavg",),
    "solo": ("strategy=solo",),
    "bfloat16": ("strategy=pfm", "training.precision=bfloat16"),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_repeated_round_gives_the_same_bits_in_reply_and_store(method: str, tmp_path: Path) -> None:
    config = tiny_config(*METHODS[method])
    momentum = some_momentum(config) if "pfm" in METHODS[method][0] else None
    subject = trainer(config, tmp_path)
    run(subject, config, 1, momentum)
    (second,) = run(subject, config, 1, momentum, start=2)
    stored = SiloStore(tmp_path).load(2)
    (again,) = run(subject, config, 1, momentum, start=2)
    assert same_result(second, again)
    for name, array in SiloStore(tmp_path).load(2).items():
        np.testing.assert_array_equal(array, stored[name], err_msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_a_new_trainer_goes_on_from_the_store_with_the_same_bits(method: str, tmp_path: Path) -> None:
    config = tiny_config(*METHODS[method])
    momentum = some_momentum(config) if "pfm" in METHODS[method][0] else None
    kept = run(trainer(config, tmp_path / "kept"), config, 3, momentum)
    for number, result in enumerate(kept, start=1):
        torch.manual_seed(number)
        (fresh,) = run(trainer(config, tmp_path / "fresh"), config, 1, momentum, start=number)
        assert same_result(fresh, result)


def test_a_trainer_that_served_another_round_in_between_is_not_confused(tmp_path: Path) -> None:
    config = tiny_config("strategy=solo")
    subject = trainer(config, tmp_path)
    first, second = run(subject, config, 2)
    assert same_result(run(subject, config, 1)[0], first)
    assert same_result(run(subject, config, 1, start=2)[0], second)


def test_a_round_that_the_server_did_not_take_is_forgotten(tmp_path: Path) -> None:
    config = tiny_config("strategy=solo")
    model = first_model(config)
    results = {}
    for lost in (True, False):
        subject = trainer(config, tmp_path / str(lost))
        run(subject, config, 2 if lost else 1)
        results[lost] = subject.train(TrainTask(3, 0.1, model, None, 1))
        assert SiloStore(tmp_path / str(lost)).rounds() == ([1, 2, 3] if lost else [1, 3])
    assert same_result(results[True], results[False])


def test_rounds_differ_in_batches_and_flips(tmp_path: Path) -> None:
    first, second = run(trainer(tiny_config("strategy=fedavg"), tmp_path), tiny_config("strategy=fedavg"), 2)
    assert not same_bits(first.model, second.model)


def test_the_received_model_and_momentum_stay_as_they_are(tmp_path: Path) -> None:
    config = tiny_config("strategy=pfm")
    model, momentum = first_model(config), some_momentum(config)
    received = ModelState(*(np.frombuffer(a.tobytes(), a.dtype) for a in (model.values, model.counters)))
    task = TrainTask(1, 0.1, received, np.frombuffer(momentum.tobytes(), np.float32), 0)
    result = trainer(config, tmp_path).train(task)
    assert same_bits(received, model)
    np.testing.assert_array_equal(task.momentum, momentum)
    assert result.model.counters.tolist() == [3] * len(model.counters)
    assert not np.isclose(result.model.values, model.values).all()


def test_reply_tells_images_owned_and_time(tmp_path: Path) -> None:
    result = run(trainer(tiny_config("strategy=fedavg"), tmp_path), tiny_config("strategy=fedavg"), 1)[0]
    assert result.num_images == 20
    assert result.seconds > 0
    assert list(result.branches) == ["alpha"]
    assert 0 <= result.branches["alpha"].accuracy <= 1


def plain_local_loop(
    backbone: IRBackbone,
    head: Tensor,
    head_momentum: Tensor,
    server_momentum: list[Tensor],
    config: Config,
    round_: int,
    rate: float,
) -> list[float]:
    """Section 3.2's local steps as the paper writes them, in autograd and float64, changing all state in place."""
    options, steps, images = config.optimizer, config.training.steps_per_round, tiny_set()
    sampler = EpochSampler(len(images.labels), config.training.batch_size, derive_seed(config.seed, "sampler", "alpha"))
    parameters, losses = list(backbone.parameters()), []
    for k in range(steps):
        indices = sampler.batch((round_ - 1) * steps + k)
        x = (torch.from_numpy(images.images(indices)).double() - 127.5) / 127.5
        labels = torch.from_numpy(images.labels[indices])
        weight = head.clone().requires_grad_()
        cosine = F.normalize(backbone(x)) @ F.normalize(weight).T
        logits = config.head.scale * (cosine - config.head.margin * F.one_hot(labels, len(head)))
        loss = F.cross_entropy(logits, labels)
        *gradients, h = torch.autograd.grad(loss, [*parameters, weight])
        with torch.no_grad():
            for theta, g, m in zip(parameters, gradients, server_momentum, strict=True):
                theta -= rate * (g + options.weight_decay * theta + options.momentum * m / steps)
            head_momentum.mul_(options.momentum).add_(h + options.weight_decay * head)
            head -= rate * head_momentum
        losses.append(loss.item())
    return losses


def test_pfm_equals_the_plain_local_loop_over_two_rounds_and_a_rate_drop(tmp_path: Path) -> None:
    # Low rates, for BatchNorm on few small images magnifies rounding from step to step; in return the momentum and the
    # decay are large, so that each moves the weights by more than a hundred times the tolerance.
    config = tiny_config(
        *PLAIN, "strategy=pfm", "model.width=4", "training.batch_size=16", "training.steps_per_round=4",
        "optimizer.weight_decay=0.2",
    )  # fmt: skip
    subject, momentum = trainer(config, tmp_path), some_momentum(config, scale=5.0)
    reference = build_backbone(config.model, config.seed).double().train()
    server = FlatModel(build_backbone(config.model)).parameter_views(torch.from_numpy(momentum).double())
    torch.manual_seed(derive_seed(config.seed, "head", "alpha"))
    head = (torch.randn(5, 8) * 0.01).double()
    head_momentum = torch.zeros_like(head)

    model, smoothed, seen = first_model(config), 0.0, 0
    for number, rate in ((1, 0.002), (2, 0.001)):
        result = subject.train(TrainTask(number, rate, model, momentum, number - 1))
        losses = plain_local_loop(reference, head, head_momentum, server, config, number, rate)
        for name, tensor in result.model.tensors(subject.layout).items():
            np.testing.assert_allclose(tensor, reference.state_dict()[name], rtol=1e-4, atol=2e-5, err_msg=name)
        state = SiloStore(tmp_path).load(number)
        np.testing.assert_allclose(state["alpha.head"], head, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(state["alpha.momentum"], head_momentum, rtol=1e-3, atol=1e-4)
        assert result.branches["alpha"].loss == pytest.approx(np.mean(losses), rel=1e-4)
        for loss in losses:
            smoothed, seen = 0.9 * smoothed + 0.1 * loss, seen + 1
        assert result.branches["alpha"].loss_ema == pytest.approx(smoothed / (1 - 0.9**seen), rel=1e-4)
        model = result.model


def test_server_momentum_moves_every_parameter_and_no_statistic(tmp_path: Path) -> None:
    # One step, so that the gradients of both runs are equal: the difference is eta beta M / K with K = 1.
    config = tiny_config("strategy=pfm", "training.steps_per_round=1")
    momentum = some_momentum(config)
    (plain,) = run(trainer(config, tmp_path / "a"), config, 1, np.zeros_like(momentum))
    (moved,) = run(trainer(config, tmp_path / "b"), config, 1, momentum)
    count = len(momentum)
    difference = plain.model.values[:count] - moved.model.values[:count]
    np.testing.assert_allclose(difference, 0.1 * 0.9 * momentum, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(plain.model.values[count:], moved.model.values[count:])


def test_momentum_of_the_head_persists_across_rounds(tmp_path: Path) -> None:
    config = tiny_config("strategy=fedavg")
    subject, store = trainer(config, tmp_path), SiloStore(tmp_path)
    run(subject, config, 1)
    state = store.load(1)
    assert state["alpha.momentum"].any()
    (with_momentum,) = run(subject, config, 1, start=2)
    moved = store.load(2)
    store.save(1, {**state, "alpha.momentum": np.zeros_like(state["alpha.momentum"])}, 0)
    (without,) = run(subject, config, 1, start=2)
    assert not np.isclose(store.load(2)["alpha.head"], moved["alpha.head"]).all()
    assert not same_bits(with_momentum.model, without.model)


def two_halves_and_one_whole(strategy: str, folder: Path) -> tuple[ModelState, ModelState]:
    """Run the same four steps as two rounds and as one, dropout aside, whose draws are the round's own."""
    models = []
    for steps in (2, 4):
        config = tiny_config(f"strategy={strategy}", f"training.steps_per_round={steps}", "model.dropout=0.0")
        subject, model = trainer(config, folder / str(steps)), first_model(config)
        for number in range(1, 4 // steps + 1):
            model = subject.train(TrainTask(number, 0.1, model, None, number - 1)).model
        models.append(model)
    return models[0], models[1]


def test_momentum_of_the_backbone_is_kept_for_solo(tmp_path: Path) -> None:
    halves, whole = two_halves_and_one_whole("solo", tmp_path)
    assert same_bits(halves, whole)
    assert "backbone.momentum" in SiloStore(tmp_path / "2").load(2)


def test_momentum_of_the_backbone_is_reset_for_fedavg(tmp_path: Path) -> None:
    halves, whole = two_halves_and_one_whole("fedavg", tmp_path)
    assert not np.isclose(halves.values, whole.values).all()
    assert "backbone.momentum" not in SiloStore(tmp_path / "2").load(2)


def test_the_first_step_of_a_fedavg_round_has_no_momentum(tmp_path: Path) -> None:
    # With one step a round, resetting the momentum at each is plain SGD.
    config = tiny_config("strategy=fedavg", "training.steps_per_round=1")
    plain = tiny_config("strategy=pfm", "training.steps_per_round=1")
    none = np.zeros_like(some_momentum(config))
    ours = run(trainer(config, tmp_path / "a"), config, 3)
    theirs = run(trainer(plain, tmp_path / "b"), plain, 3, none)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.model.values, b.model.values, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("weights", [(), (0.2, 0.7, 1.5)], ids=["1/n each", "given"])
def test_central_scales_gradients_of_the_backbone_by_branch_and_those_of_heads_not(
    weights: tuple[float, ...], tmp_path: Path
) -> None:
    config = tiny_config(*CENTRAL, f"strategy.branch_weights={list(weights)}")
    subject = trainer(config, tmp_path, SETS)
    batches = [subject._branches[i].batch(0) for i in range(3)]
    heads = [torch.from_numpy(b.state()[f"{b.name}.head"].copy()).requires_grad_() for b in subject._branches]
    before = first_model(config)
    result = subject.train(TrainTask(1, 0.1, before, None, 0))

    flat = FlatModel(build_backbone(config.model, config.seed))
    outputs = flat.module(to_device(torch.cat([pixels for pixels, _ in batches]), torch.device("cpu"))).split(8)
    losses = [
        F.cross_entropy(16 * (F.normalize(e) @ F.normalize(w).T - 0.1 * F.one_hot(labels, 5)), labels)
        for e, w, (_, labels) in zip(outputs, heads, batches, strict=True)
    ]
    shared = sum(w * loss for w, loss in zip(weights or (1 / 3,) * 3, losses, strict=True))
    assert isinstance(shared, Tensor)
    gradients = torch.autograd.grad(shared, list(flat.module.parameters()), retain_graph=True)
    moved = (before.values - result.model.values)[: flat.layout.num_parameters] / 0.1
    np.testing.assert_allclose(moved, torch.cat([g.ravel() for g in gradients]), rtol=1e-3, atol=5e-6)

    state = SiloStore(tmp_path).load(1)
    for name, head, loss in zip(SETS, heads, losses, strict=True):
        (gradient,) = torch.autograd.grad(loss, head, retain_graph=True)
        np.testing.assert_allclose(state[f"{name}.momentum"], gradient, rtol=1e-3, atol=1e-5)
        assert result.branches[name].loss == pytest.approx(loss.item(), rel=1e-5)


def test_central_trains_on_the_batches_and_from_the_heads_that_the_silos_have(tmp_path: Path) -> None:
    pooled = trainer(tiny_config("strategy=central"), tmp_path / "central", SETS)
    assert pooled.num_images == 60
    for branch, name in zip(pooled._branches, SETS, strict=True):
        (alone,) = trainer(tiny_config("strategy=fedavg"), tmp_path / name, (name,))._branches
        assert torch.equal(branch.batch(4)[0], alone.batch(4)[0])
        np.testing.assert_array_equal(branch.state()[f"{name}.head"], alone.state()[f"{name}.head"])


def test_branch_weights_are_central_trainings_alone(tmp_path: Path) -> None:
    plain = tiny_config("strategy=fedavg")
    weighted = tiny_config("strategy=fedavg", "strategy.branch_weights=[5,5,5]")
    a, b = run(trainer(plain, tmp_path / "a"), plain, 1), run(trainer(weighted, tmp_path / "b"), weighted, 1)
    assert same_bits(a[0].model, b[0].model)


def test_central_training_goes_on_from_the_store_with_all_heads_and_the_backbones_momentum(tmp_path: Path) -> None:
    config = tiny_config("strategy=central")
    kept = run(trainer(config, tmp_path / "kept", SETS), config, 2)
    run(trainer(config, tmp_path / "fresh", SETS), config, 1)
    assert same_result(run(trainer(config, tmp_path / "fresh", SETS), config, 1, start=2)[0], kept[1])
    names = {f"{name}.{part}" for name in SETS for part in ("head", "momentum", "smoothed_loss", "steps")}
    assert set(SiloStore(tmp_path / "kept").load(2)) == names | {"backbone.momentum"}


def test_a_loss_that_is_not_finite_names_silo_round_and_step_and_saves_nothing(tmp_path: Path) -> None:
    config = tiny_config("strategy=fedavg")
    subject = trainer(config, tmp_path)
    run(subject, config, 1)
    # Weights near float32's largest: the first step's loss is finite, its update is not.
    with pytest.raises(TrainingError, match=r"^alpha: the loss is no longer finite in round 2, step 2; lower"):
        subject.train(TrainTask(2, 1e38, first_model(config), None, 1))
    assert SiloStore(tmp_path).rounds() == [1]
    assert np.isfinite(run(subject, config, 1, start=2)[0].model.values).all()


def test_a_model_that_is_not_finite_fails_at_the_first_step(tmp_path: Path) -> None:
    config = tiny_config("strategy=fedavg")
    model = first_model(config)
    model.values[0] = np.nan
    with pytest.raises(TrainingError, match="round 1, step 1"):
        trainer(config, tmp_path).train(TrainTask(1, 0.1, model, None, 0))


def test_a_round_whose_predecessor_is_missing_cannot_be_trained(tmp_path: Path) -> None:
    config = tiny_config("strategy=fedavg")
    subject = trainer(config, tmp_path)
    run(subject, config, 1)
    with pytest.raises(StateError, match=r"no state of round 2 \(kept: 1\)"):
        run(subject, config, 1, start=3)


def test_a_model_of_another_layout_is_refused(tmp_path: Path) -> None:
    config, other = tiny_config("strategy=fedavg"), tiny_config("strategy=fedavg", "model.width=3")
    with pytest.raises(StateError, match="does not fit a layout"):
        trainer(config, tmp_path).train(TrainTask(1, 0.1, first_model(other), None, 0))
    assert SiloStore(tmp_path).rounds() == []


def test_layout_is_the_backbones_with_heads_left_out(tmp_path: Path) -> None:
    config = tiny_config("strategy=fedavg")
    layout = trainer(config, tmp_path).layout
    assert layout == FlatModel(build_backbone(config.model)).layout
    parameters = sum(p.numel() for p in build_backbone(config.model).parameters())
    assert sum(e.size for e in layout.entries if e.kind is Kind.PARAMETER) == parameters


def test_training_learns(tmp_path: Path) -> None:
    config = tiny_config(
        "strategy=solo", "model.width=4", "model.dropout=0.0", "training.steps_per_round=15", "training.batch_size=16"
    )
    subject, model = trainer(config, tmp_path), first_model(config)
    figures = []
    for number in (1, 2):
        result = subject.train(TrainTask(number, 0.05, model, None, number - 1))
        model = result.model
        figures.append(result.branches["alpha"])
    assert figures[1].loss < 0.6 * figures[0].loss
    assert figures[1].accuracy > 1.4 * figures[0].accuracy


def test_smoothing_counts_the_steps_of_all_rounds(tmp_path: Path) -> None:
    config = dataclasses.replace(
        tiny_config("strategy=fedavg"),
        training=dataclasses.replace(tiny_config().training, steps_per_round=1, loss_smoothing=0.5),
    )
    first, second = (r.branches["alpha"] for r in run(trainer(config, tmp_path), config, 2))
    assert first.loss_ema == pytest.approx(first.loss, rel=1e-12)
    assert second.loss_ema == pytest.approx((first.loss / 3) + (second.loss * 2 / 3), rel=1e-12)
