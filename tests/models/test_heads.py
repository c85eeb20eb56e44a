# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedface_flwr.errors import ConfigError
from fedface_flwr.models.heads import ArcFace, CosFace, MarginHead, margin_head

HEADS = [ArcFace, CosFace]


def arcface_value(angle: float, margin: float) -> float:
    if angle + margin > math.pi:
        return math.cos(angle) - 1.0 + math.cos(margin)
    return math.cos(angle + margin)


def cosface_value(angle: float, margin: float) -> float:
    return math.cos(angle) - margin


PLAIN: dict[type[MarginHead], Callable[[float, float], float]] = {
    ArcFace: arcface_value,
    CosFace: cosface_value,
}


def plain_loss_and_logits(
    head: MarginHead, x: list[list[float]], w: list[list[float]], labels: list[int]
) -> tuple[float, list[list[float]]]:
    loss, logits = 0.0, []
    for row, label in zip(x, labels, strict=True):
        line = []
        for identity, centre in enumerate(w):
            dot = sum(a * b for a, b in zip(row, centre, strict=True))
            lengths = math.sqrt(sum(a * a for a in row)) * math.sqrt(sum(b * b for b in centre))
            angle = math.acos(max(-1.0, min(1.0, dot / lengths)))
            line.append(head.scale * (PLAIN[type(head)](angle, head.margin) if identity == label else math.cos(angle)))
        top = max(line)
        loss += math.log(sum(math.exp(v - top) for v in line)) + top - line[label]
        logits.append(line)
    return loss / len(x), logits


def batch(head: MarginHead, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    identities, dims = head.weight.shape
    x = torch.randn(n, dims, generator=generator)
    return x, torch.randint(0, identities, (n,), generator=generator)


def planar(angles: Tensor, head: MarginHead) -> Tensor:
    """Set two orthogonal class centres and return embeddings at the angles to the first, of length 3."""
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.5]]))
    return 3 * torch.stack([angles.cos(), angles.sin()], dim=1).float()


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("margin", [0.0, 0.2, 0.5, 1.3])
def test_logits_and_loss_equal_the_plain_loops(kind: type[ArcFace | CosFace], margin: float) -> None:
    torch.manual_seed(0)
    head = kind(5, 7, scale=16.0, margin=margin)
    x, labels = batch(head, 40)
    with torch.no_grad():
        # Some samples on the far side, so that the continuation is covered too.
        x[:8] = -head.weight[labels[:8]] + 0.001 * x[:8]
    logits, cosine = head(x, labels)
    loss, expected = plain_loss_and_logits(head, x.double().tolist(), head.weight.double().tolist(), labels.tolist())
    torch.testing.assert_close(logits.double() / 16, torch.tensor(expected).double() / 16, rtol=0, atol=1e-5)
    assert F.cross_entropy(logits, labels).item() == pytest.approx(loss, rel=1e-5)
    free = F.cosine_similarity(x[:, None], head.weight[None], dim=2)
    torch.testing.assert_close(cosine, free, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", HEADS)
def test_gradients_equal_finite_differences_of_the_plain_loops(kind: type[ArcFace | CosFace]) -> None:
    torch.manual_seed(1)
    head = kind(4, 3, scale=8.0)
    x, labels = batch(head, 5)
    x[0] = -20 * head.weight[labels[0]].detach() + 0.1 * x[0]
    x.requires_grad_()
    F.cross_entropy(head(x, labels)[0], labels).backward()
    values = {"x": x.detach().double(), "w": head.weight.detach().double()}
    for name, gradient in (("x", x.grad), ("w", head.weight.grad)):
        # A step in proportion to the tensor's own size; centres start near 0.01.
        step = 1e-5 * values[name].std().item()
        expected = torch.empty_like(values[name])
        for i in range(expected.numel()):
            sides = []
            for sign in (1, -1):
                moved = {key: v.clone() for key, v in values.items()}
                moved[name].view(-1)[i] += sign * step
                sides.append(plain_loss_and_logits(head, moved["x"].tolist(), moved["w"].tolist(), labels.tolist())[0])
            expected.view(-1)[i] = (sides[0] - sides[1]) / (2 * step)
        assert gradient is not None
        scale = expected.abs().max().item()
        torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=1e-4 * scale)


@given(cosine=st.floats(-1, 1, width=32), margin=st.floats(0, 3.0))
@settings(max_examples=300, deadline=None)
def test_arcface_value_is_the_formula_at_every_float32_cosine(cosine: float, margin: float) -> None:
    value, slope = ArcFace(2, 2, margin=margin).with_margin(torch.tensor(cosine))
    assert value.item() == pytest.approx(arcface_value(math.acos(cosine), margin), abs=1e-6)
    assert math.isfinite(slope.item())
    assert slope.item() >= -1e-6


@pytest.mark.parametrize("cosine", [1 - 2.0**-24, 1 - 1e-5, 0.9, 0.3, -0.2, -0.87])
def test_arcface_slope_is_exact_inside_the_interval(cosine: float) -> None:
    rounded = torch.tensor(cosine)
    angle = math.acos(rounded.item())
    _, slope = ArcFace(2, 2).with_margin(rounded)
    assert slope.item() == pytest.approx(math.sin(angle + 0.5) / math.sin(angle), rel=1e-5, abs=1e-6)


def test_arcface_slope_at_one_and_just_beyond_is_that_of_the_nearest_cosine_inside() -> None:
    _, slope = ArcFace(2, 2).with_margin(torch.tensor([1 - 2.0**-24, 1.0, 1 + 2.0**-23, 1 + 2.0**-20]))
    torch.testing.assert_close(slope, slope[:1].expand(4), rtol=1e-5, atol=0)


def test_rounding_beyond_the_interval_gives_the_values_of_its_ends() -> None:
    value, _ = ArcFace(2, 2).with_margin(torch.tensor([1 + 2.0**-23, -1 - 2.0**-23]))
    expected = torch.tensor([math.cos(0.5), -2 + math.cos(0.5)])
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("margin", [0.1, 0.5, 2.0])
def test_arcface_is_continuous_where_the_angle_plus_margin_passes_pi(margin: float) -> None:
    join = -math.cos(margin)
    value, _ = ArcFace(2, 2, margin=margin).with_margin(torch.tensor([join - 1e-6, join, join + 1e-6]))
    torch.testing.assert_close(value, torch.full((3,), -1.0), rtol=0, atol=3e-6)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("margin", [0.0, 0.35, 0.5, 1.5])
def test_target_logit_falls_over_the_whole_range_of_angles(kind: type[ArcFace | CosFace], margin: float) -> None:
    head = kind(2, 2, scale=1.0, margin=margin)
    x = planar(torch.linspace(0, math.pi, 5001, dtype=torch.float64), head)
    target = head(x, torch.zeros(5001, dtype=torch.int64))[0][:, 0]
    # Steps are 6e-4 rad: where the curve is flat it falls by less than float32 resolves.
    assert target.diff().max() <= 3e-7
    assert target[::50].diff().max() < 0


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("direction", [1.0, -1.0])
@pytest.mark.parametrize("dims", [1, 2, 128, 512])
def test_parallel_and_opposite_embeddings_have_finite_logits_and_gradients(
    kind: type[ArcFace | CosFace], direction: float, dims: int
) -> None:
    torch.manual_seed(dims)
    head = kind(dims, 64)
    labels = torch.arange(64)
    # Half are exact copies, whose cosines round to either side of 1; the others differ in length.
    lengths = torch.where(labels < 32, 1.0, 50.0 + labels)[:, None]
    x = (direction * lengths * head.weight.detach()).requires_grad_()
    logits, cosine = head(x, labels)
    torch.testing.assert_close(cosine.diagonal(), torch.full((64,), direction), rtol=0, atol=2e-6)
    F.cross_entropy(logits, labels).backward()
    for tensor in (logits, x.grad, head.weight.grad):
        assert tensor is not None
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize(("direction", "value"), [(1.0, math.cos(0.5)), (-1.0, -2 + math.cos(0.5))])
def test_arcface_value_at_exactly_one_and_minus_one(direction: float, value: float) -> None:
    head = ArcFace(2, 2)
    x = planar(torch.zeros(1), head) * direction
    logits, cosine = head(x, torch.tensor([0]))
    assert cosine[0, 0].item() == direction
    assert logits[0, 0].item() == pytest.approx(64 * value, abs=1e-5)


@pytest.mark.parametrize("angle", [3e-2, 0.1, 1.0, 2.0])
def test_gradient_of_an_embedding_near_its_class_stays_bounded_and_right(angle: float) -> None:
    head = ArcFace(2, 2, scale=1.0)
    x = planar(torch.tensor([angle], dtype=torch.float64), head).requires_grad_()
    head(x, torch.tensor([0]))[0][0, 0].backward()
    # Moving by dt across the embedding, of length 3, turns it by dt / 3.
    across = torch.tensor([-math.sin(angle), math.cos(angle)])
    assert x.grad is not None
    torch.testing.assert_close(x.grad[0], -math.sin(angle + 0.5) / 3 * across, rtol=0, atol=3e-4)


@given(log_angle=st.floats(-8, -2))
@settings(max_examples=100, deadline=None)
def test_gradient_length_towards_angle_zero_never_explodes(log_angle: float) -> None:
    head = ArcFace(2, 2, scale=1.0)
    x = planar(torch.tensor([10**log_angle], dtype=torch.float64), head).requires_grad_()
    head(x, torch.tensor([0]))[0][0, 0].backward()
    assert x.grad is not None
    assert x.grad.norm().item() <= 3 * math.sin(0.5 + 10**log_angle) / 3


@pytest.mark.parametrize("kind", HEADS)
def test_without_margin_it_is_a_softmax_on_scaled_cosines(kind: type[ArcFace | CosFace]) -> None:
    torch.manual_seed(0)
    head = kind(16, 9, margin=0.0)
    x, labels = batch(head, 30)
    logits, cosine = head(x, labels)
    torch.testing.assert_close(logits, 64 * cosine, rtol=1e-6, atol=1e-5)
    F.cross_entropy(logits, labels).backward()
    plain = head.weight.detach().clone().requires_grad_()
    F.cross_entropy(64 * F.linear(F.normalize(x), F.normalize(plain)), labels).backward()
    torch.testing.assert_close(head.weight.grad, plain.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", HEADS)
def test_margin_touches_only_the_target(kind: type[ArcFace | CosFace]) -> None:
    head = kind(6, 5, scale=10.0)
    x, labels = batch(head, 20)
    logits, cosine = head(x, labels)
    others = ~F.one_hot(labels, 5).bool()
    torch.testing.assert_close(logits[others], 10 * cosine[others])
    assert (logits[~others] < 10 * cosine[~others]).all()


@pytest.mark.parametrize("kind", HEADS)
def test_autocast_and_low_precision_embeddings_are_computed_in_float32(
    kind: type[ArcFace | CosFace],
) -> None:
    torch.manual_seed(0)
    head = kind(64, 10)
    x, labels = batch(head, 12)
    low = x.bfloat16().requires_grad_()
    expected, expected_cosine = head(low.detach().float(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, cosine = head(low, labels)
        loss = F.cross_entropy(logits, labels)
    assert logits.dtype == cosine.dtype == torch.float32
    assert torch.equal(logits, expected)
    assert torch.equal(cosine, expected_cosine)
    loss.backward()
    assert head.weight.grad is not None
    assert head.weight.grad.dtype == torch.float32
    assert low.grad is not None
    assert low.grad.dtype == torch.bfloat16


def test_cosine_carries_no_graph() -> None:
    head = CosFace(4, 3)
    logits, cosine = head(*batch(head, 2))
    assert logits.requires_grad
    assert not cosine.requires_grad


@pytest.mark.parametrize("kind", HEADS)
def test_lengths_of_embeddings_and_centres_do_not_matter(kind: type[ArcFace | CosFace]) -> None:
    head = kind(8, 6)
    x, labels = batch(head, 10)
    expected, _ = head(x, labels)
    with torch.no_grad():
        head.weight.mul_(torch.linspace(0.1, 30, 6)[:, None])
    torch.testing.assert_close(head(7 * x, labels)[0], expected, rtol=0, atol=1e-4)


def test_training_lowers_the_loss_to_near_zero() -> None:
    torch.manual_seed(0)
    head = ArcFace(8, 4, scale=16.0, margin=0.5)
    x = nn.Parameter(torch.randn(16, 8))
    labels = torch.arange(16) % 4
    optimizer = torch.optim.SGD([x, head.weight], lr=0.1, momentum=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        loss = F.cross_entropy(head(x, labels)[0], labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss.item() < 0.01


def test_initial_centres_are_normal_with_the_documented_deviation_and_follow_the_seed() -> None:
    torch.manual_seed(3)
    weight = ArcFace(128, 200).weight
    assert weight.shape == (200, 128)
    assert weight.dtype == torch.float32
    assert weight.std().item() == pytest.approx(0.01, rel=0.02)
    torch.manual_seed(3)
    assert torch.equal(weight, CosFace(128, 200).weight)


def test_defaults_are_the_papers() -> None:
    arcface, cosface = ArcFace(2, 2), CosFace(2, 2)
    assert (arcface.scale, arcface.margin) == (64.0, 0.5)
    assert (cosface.scale, cosface.margin) == (64.0, 0.35)


@pytest.mark.parametrize(("name", "kind"), [("arcface", ArcFace), ("cosface", CosFace)])
def test_margin_head_builds_by_name(name: str, kind: type[MarginHead]) -> None:
    head = margin_head(name, 4, 3, scale=16.0, margin=0.1)
    assert type(head) is kind
    assert (head.weight.shape, head.scale, head.margin) == ((3, 4), 16.0, 0.1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("softmax", 4, 3, 1.0, 0.1), r"'softmax'.*\['arcface', 'cosface'\]"),
        (("arcface", 0, 3, 1.0, 0.1), "embedding 0"),
        (("arcface", 4, 0, 1.0, 0.1), "identities 0"),
        (("cosface", 4, 3, 0.0, 0.1), "scale is 0.0"),
        (("cosface", 4, 3, math.inf, 0.1), "scale is inf"),
        (("cosface", 4, 3, 1.0, -0.1), "margin is -0.1"),
        (("cosface", 4, 3, 1.0, math.nan), "margin is nan"),
        (("arcface", 4, 3, 1.0, 3.2), "margin of ArcFace is 3.2"),
    ],
)
def test_impossible_settings_are_refused(arguments: tuple[str, int, int, float, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        margin_head(*arguments)
