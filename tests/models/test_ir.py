# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedface_flwr.errors import ConfigError
from fedface_flwr.models.ir import UNITS_PER_STAGE, IRBackbone, IRUnit


def narrow(depth: int = 18, **options: float) -> IRBackbone:
    settings = {"width": 4, "input_size": 32, "embedding": 8} | options
    return IRBackbone(depth, **settings)  # type: ignore[arg-type]


def trainable(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def images(n: int = 4, size: int = 32) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(5)) * 2 - 1


@pytest.mark.parametrize(("depth", "count"), [(18, 24_020_352), (34, 34_134_080), (50, 43_585_600)])
def test_the_paper_sizes_have_the_published_number_of_trainable_parameters(depth: int, count: int) -> None:
    with torch.device("meta"):
        assert trainable(IRBackbone(depth)) == count


def test_count_of_a_narrow_model_derived_by_hand() -> None:
    w, side, dims = 4, 2, 8
    stem = 3 * w * 9 + 2 * w + w

    def unit(a: int, b: int) -> int:
        shortcut = 0 if a == b else a * b + 2 * b
        return 2 * a + 9 * a * b + 2 * b + b + 9 * b * b + 2 * b + shortcut

    stages = unit(w, w) * 2 + sum(unit(w * k // 2, w * k) + unit(w * k, w * k) for k in (2, 4, 8))
    output = 2 * 8 * w + 8 * w * side * side * dims + dims
    assert trainable(narrow()) == stem + stages + output


@pytest.mark.parametrize("depth", [18, 34, 50])
@pytest.mark.parametrize("size", [16, 17, 48, 56])
def test_embedding_has_the_asked_shape(depth: int, size: int) -> None:
    model = narrow(depth, input_size=size, embedding=6, width=2)
    assert model(images(3, size)).shape == (3, 6)


@pytest.mark.parametrize("depth", [18, 34, 50])
def test_every_stage_halves_the_side_in_its_first_unit_and_stages_double_the_channels(depth: int) -> None:
    model = narrow(depth, input_size=112)
    x = model.stem(images(1, 112))
    assert x.shape == (1, 4, 112, 112)
    for k, (stage, units) in enumerate(zip(model.stages, UNITS_PER_STAGE[depth], strict=True)):
        assert len(stage) == units
        x = stage[0](x)
        shape = (1, 4 * 2**k, 112 // 2 ** (k + 1), 112 // 2 ** (k + 1))
        assert x.shape == shape
        for unit in stage[1:]:
            x = unit(x)
            assert x.shape == shape


def plain_unit(unit: IRUnit, x: Tensor, stride: int, channels_differ: bool) -> Tensor:
    norm0, conv1, norm1, prelu, conv2, norm2 = unit.residual

    def batch_norm(v: Tensor, norm: nn.Module) -> Tensor:
        mean = v.mean((0, 2, 3), keepdim=True)
        var = v.var((0, 2, 3), unbiased=False, keepdim=True)
        return (v - mean) / (var + 1e-5).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]

    out = F.conv2d(batch_norm(x, norm0), conv1.weight, padding=1)
    out = batch_norm(out, norm1)
    out = torch.where(out > 0, out, prelu.weight[:, None, None] * out)
    out = batch_norm(F.conv2d(out, conv2.weight, stride=stride, padding=1), norm2)
    short = x[:, :, ::stride, ::stride]
    if channels_differ:
        conv, norm = unit.shortcut
        short = batch_norm(torch.einsum("oi,nihw->nohw", conv.weight[:, :, 0, 0], short), norm)
    return out + short


@pytest.mark.parametrize(("a", "b", "stride"), [(3, 3, 1), (3, 3, 2), (3, 6, 2), (3, 6, 1)])
def test_unit_equals_its_plain_definition(a: int, b: int, stride: int) -> None:
    torch.manual_seed(0)
    unit = IRUnit(a, b, stride).double()
    for p in unit.parameters():
        nn.init.normal_(p)
    x = torch.randn(2, a, 7, 7, dtype=torch.float64)
    torch.testing.assert_close(unit(x), plain_unit(unit, x, stride, a != b), rtol=0, atol=1e-10)


def test_only_units_that_change_the_channels_have_weights_in_the_shortcut() -> None:
    units = [unit for stage in narrow(34).stages for unit in stage]
    with_weights = [i for i, unit in enumerate(units) if trainable(unit.shortcut)]
    assert with_weights == [3, 7, 13]
    assert isinstance(units[0].shortcut, nn.MaxPool2d)


def test_evaluation_is_deterministic_and_training_drops_features() -> None:
    model = narrow()
    x = images()
    assert not torch.equal(model(x), model(x))
    model.eval()
    torch.testing.assert_close(model(x), model(x), rtol=0, atol=0)
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)


def test_training_embeddings_are_standardised_and_not_of_unit_length() -> None:
    out = narrow()(images(16))
    torch.testing.assert_close(out.mean(0), torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(out.var(0, unbiased=False), torch.ones(8), rtol=0, atol=1e-2)
    assert not torch.allclose(out.norm(dim=1), torch.ones(16), atol=0.1)


def test_without_dropout_training_is_deterministic() -> None:
    model = narrow(dropout=0.0)
    torch.testing.assert_close(model(images()), model(images()), rtol=0, atol=0)


def test_last_norm_has_statistics_and_no_parameters() -> None:
    last = narrow().output[-1]
    assert list(last.parameters()) == []
    assert {name for name, _ in last.named_buffers()} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }


def test_seed_determines_the_initial_weights() -> None:
    def state(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(narrow().parameters())

    assert torch.equal(state(1), state(1))
    assert not torch.equal(state(1), state(2))


def test_initial_weights_have_the_documented_spread() -> None:
    torch.manual_seed(0)
    model = IRBackbone(18, width=16, input_size=32, embedding=64)
    conv = model.stages[3][0].residual[1]  # 64 channels in, 128 out
    assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 128)), rel=0.02)
    linear = model.output[3]
    assert linear.weight.std().item() == pytest.approx(math.sqrt(2 / (128 * 4 + 64)), rel=0.02)
    assert torch.count_nonzero(linear.bias) == 0


def test_every_parameter_receives_a_finite_gradient() -> None:
    model = narrow()
    torch.manual_seed(0)
    (model(images()) * torch.randn(4, 8)).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name


def test_channels_last_gives_the_same_embeddings() -> None:
    model = narrow().eval()
    expected = model(images())
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    actual = model(images().contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_autocast_trains_and_stays_near_float32() -> None:
    model = narrow(dropout=0.0)
    expected = model(images(8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = model(images(8))
    assert F.cosine_similarity(actual.float(), expected).min() > 0.98
    actual.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"depth": 20}, r"depth is 20.*\[18, 34, 50\]"),
        ({"input_size": 15}, "input_size is 15.*at least 16"),
        ({"width": 0}, "width is 0"),
        ({"embedding": 0}, "embedding 0"),
        ({"dropout": 1.0}, r"dropout is 1.0.*\[0, 1\)"),
        ({"dropout": math.nan}, "dropout is nan"),
    ],
)
def test_impossible_settings_are_refused_by_name(options: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        narrow(**options)  # type: ignore[arg-type]
