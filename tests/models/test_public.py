# SPDX-License-Identifier: Apache-2.0
"""Public state dicts against plain modules of the public topologies."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from plain_public import Insightface, TFace, faces, lived_in
from torch import Tensor, nn

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.models.public import export_state, import_state
from fedface_flwr.models.public_names import Dialect, dialect_of
from fedface_flwr.models.topology import Architecture, Network

WIDTH, SIZE, DIMS = 8, 48, 16
PLAIN = {Dialect.INSIGHTFACE: Insightface, Dialect.TFACE: TFace}
both = pytest.mark.parametrize("dialect", list(PLAIN))


@pytest.fixture(scope="module")
def modules() -> dict[Dialect, nn.Module]:
    return {dialect: lived_in(kind(18, WIDTH, SIZE, DIMS), SIZE) for dialect, kind in PLAIN.items()}


@pytest.fixture
def state(modules: dict[Dialect, nn.Module]) -> dict[str, Tensor]:
    return dict(modules[Dialect.INSIGHTFACE].state_dict())


def imported(module: nn.Module) -> Network:
    return import_state(module.state_dict(), where="weights.pth")


@torch.no_grad()
def test_a_public_module_embeds_the_same_here(modules: dict[Dialect, nn.Module]) -> None:
    for dialect, module in modules.items():
        insightface = dialect is Dialect.INSIGHTFACE
        network = imported(module)
        assert network.architecture == Architecture(18, WIDTH, SIZE, DIMS, insightface, insightface)
        x = faces(5, SIZE)
        torch.testing.assert_close(network.module(x), module(x), rtol=0, atol=1e-5)
        assert module(x).std() > 0.3  # else anything would agree


@both
@pytest.mark.parametrize("depth", [34, 50, 100])
def test_deeper_ones_map_onto_their_own_names_and_back(dialect: Dialect, depth: int) -> None:
    module = PLAIN[dialect](depth, 2, 20, 4)
    network = imported(module)
    assert network.architecture.depth == depth
    exported, expected = export_state(network, dialect), module.state_dict()
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in expected.items())


@both
def test_the_full_size_has_the_public_names_and_shapes(dialect: Dialect) -> None:
    insightface = dialect is Dialect.INSIGHTFACE
    with torch.device("meta"):
        expected = PLAIN[dialect](18).state_dict()
        architecture = Architecture(18, 64, 112, 512, insightface, insightface)
        network = Network(architecture, architecture.build())
    exported = export_state(network, dialect)
    assert {name: tensor.shape for name, tensor in exported.items()} == {n: t.shape for n, t in expected.items()}
    # Ours has 24,020,352; insightface's adds a 64x64 convolution with its norm, and scale and shift of the last norm.
    count = 24_020_352 + (64 * 64 + 2 * 64 + 2 * 512 if insightface else 0)
    assert sum(p.numel() for p in network.module.parameters()) == count


@pytest.mark.parametrize(
    ("ours", "insightface", "tface"),
    [
        ("stem.0.weight", "conv1.weight", "input_layer.0.weight"),
        ("stem.2.weight", "prelu.weight", "input_layer.2.weight"),
        ("stages.0.1.residual.3.weight", "layer1.1.prelu.weight", "body.1.res_layer.3.weight"),
        ("stages.2.0.residual.4.weight", "layer3.0.conv2.weight", "body.4.res_layer.4.weight"),
        (
            "stages.3.0.shortcut.1.running_var",
            "layer4.0.downsample.1.running_var",
            "body.6.shortcut_layer.1.running_var",
        ),
        ("stages.3.1.residual.5.bias", "layer4.1.bn3.bias", "body.7.res_layer.5.bias"),
        ("output.0.running_mean", "bn2.running_mean", "output_layer.0.running_mean"),
        ("output.3.bias", "fc.bias", "output_layer.3.bias"),
        ("output.4.num_batches_tracked", "features.num_batches_tracked", "output_layer.4.num_batches_tracked"),
    ],
)
def test_names_by_hand(modules: dict[Dialect, nn.Module], ours: str, insightface: str, tface: str) -> None:
    network = imported(modules[Dialect.TFACE])
    for dialect, name in ((Dialect.INSIGHTFACE, insightface), (Dialect.TFACE, tface), (Dialect.FEDFACE, ours)):
        assert torch.equal(export_state(network, dialect)[name], network.module.state_dict()[ours])


@torch.no_grad()
def test_ours_under_insightface_names_embeds_the_same_in_its_topology(modules: dict[Dialect, nn.Module]) -> None:
    network = imported(modules[Dialect.TFACE])
    theirs = Insightface(18, WIDTH, SIZE, DIMS).eval()
    theirs.load_state_dict(export_state(network, Dialect.INSIGHTFACE), strict=True)
    x = faces(4, SIZE)
    torch.testing.assert_close(theirs(x), network.module(x), rtol=0, atol=2e-6)
    stage = theirs.layer1[0].downsample
    assert torch.equal(stage(x.new_ones(1, WIDTH, 4, 4) / 3), x.new_ones(1, WIDTH, 2, 2) / 3)
    back = export_state(import_state(theirs.state_dict(), where="x"), Dialect.TFACE)
    assert all(torch.equal(back[name], tensor) for name, tensor in modules[Dialect.TFACE].state_dict().items())


@torch.no_grad()
@pytest.mark.parametrize("half", [False, True])
def test_scale_and_shift_of_the_last_norm_go_into_what_tface_has(modules: dict[Dialect, nn.Module], half: bool) -> None:
    state = export_state(imported(modules[Dialect.TFACE]), Dialect.INSIGHTFACE)
    state["features.weight"] = torch.linspace(-1.5, 2, DIMS)
    state["features.bias"] = torch.linspace(-1, 1, DIMS)
    if half:
        state = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    network = import_state(state, where="x")
    theirs = TFace(18, WIDTH, SIZE, DIMS).eval()
    theirs.load_state_dict(export_state(network, Dialect.TFACE), strict=True)
    x = faces(4, SIZE)
    torch.testing.assert_close(theirs(x), network.module(x), rtol=0, atol=1e-4)


def test_a_trained_first_shortcut_has_no_place_in_tface(modules: dict[Dialect, nn.Module]) -> None:
    with pytest.raises(DataError, match=r"stages\.0\.0\.shortcut\.0\.weight.*trained convolution.*insightface's names"):
        export_state(imported(modules[Dialect.INSIGHTFACE]), Dialect.TFACE)


def test_names_of_data_parallel_training_and_half_precision_are_understood(state: dict[str, Tensor]) -> None:
    plain = import_state(state, where="x").module.state_dict()
    prefixed = {f"module.{name}": t.bfloat16() if t.is_floating_point() else t for name, t in state.items()}
    network = import_state(prefixed, where="x")
    for name, tensor in network.module.state_dict().items():
        assert tensor.dtype == plain[name].dtype, name
        torch.testing.assert_close(tensor, plain[name], rtol=2**-8, atol=0)


def test_the_network_keeps_copies(state: dict[str, Tensor]) -> None:
    network = import_state(state, where="x")
    before = network.module.stem[0].weight.clone()
    exported = export_state(network, Dialect.INSIGHTFACE)
    state["conv1.weight"] = state["conv1.weight"].zero_()
    exported["conv1.weight"].zero_()
    assert torch.equal(network.module.stem[0].weight, before)


@torch.no_grad()
def test_weights_trained_on_bgr_take_rgb(modules: dict[Dialect, nn.Module]) -> None:
    module = modules[Dialect.TFACE]
    network = import_state(module.state_dict(), where="x", colour_order="BGR")
    x = faces(3, SIZE)
    torch.testing.assert_close(network.module(x), module(x.flip(1)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("size", "told"), [(33, 33), (48, 48), (None, 48)])
def test_the_input_size_is_what_fits_the_linear_layer(state: dict[str, Tensor], size: int | None, told: int) -> None:
    assert import_state(state, where="x", input_size=size).architecture.input_size == told


@pytest.mark.parametrize("size", [32, 49, 0, -16])
def test_an_input_size_that_does_not_fit_is_refused(state: dict[str, Tensor], size: int) -> None:
    with pytest.raises(ConfigError, match=rf"input size {size} does not fit.*33 to 48"):
        import_state(state, where="x", input_size=size)


Change = Callable[[dict[str, Tensor]], object]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("layer2.0.bn1.bias"), "lacks 1 tensors of insightface's IR-18 of width 8: layer2.0.bn1.bias"),
        (lambda s: s.pop("bn2.num_batches_tracked"), "lacks 1 tensors.*bn2.num_batches_tracked"),
        (lambda s: s.pop("conv1.weight"), "lacks the first convolution"),
        (lambda s: s.pop("layer1.0.downsample.0.weight"), "lacks 1 tensors.*layer1.0.downsample.0.weight"),
        (lambda s: s.update({"head.weight": torch.ones(3)}), "1 tensors have no place.*IR-18: head.weight"),
        (lambda s: s.update({"bn2.scale": torch.ones(3)}), "1 tensors have no place.*width 8: bn2.scale"),
        (lambda s: s.update({"layer4.2.bn1.bias": torch.ones(3)}), "has 9 units.*8 .IR-18.*98 .IR-200"),
        (lambda s: s.update({"layer1.0.se.weight": torch.ones(3)}), "no place.*layer1.0.se.weight"),
        (lambda s: s.update({"layer1.1.downsample.0.weight": torch.ones(3)}), "no place.*layer1.1.downsample.0.weight"),
        (lambda s: s.update({"bn2.bias": torch.ones(3)}), r"bn2.bias has shape \[3\], not \[64\]"),
        (lambda s: s.update({"fc.weight": torch.ones(16, 64 * 8)}), "takes 512 features, not a square map of 64"),
        (lambda s: s.update({"bn2.bias": torch.ones(64).int()}), "bn2.bias is of type torch.int32"),
        (lambda s: s.update({"bn2.bias": torch.full((64,), torch.nan)}), "bn2.bias holds values that are not finite"),
        (lambda s: s.update({"bn2.running_var": -torch.ones(64)}), "bn2.running_var holds.*negative variances"),
        (lambda s: s.update({"module.x": torch.ones(3)}), "no place.*module.x"),
    ],
)
def test_what_does_not_map_is_named(state: dict[str, Tensor], change: Change, said: str) -> None:
    change(state)
    with pytest.raises(DataError, match=f"weights.pth: .*{said}"):
        import_state(state, where="weights.pth")


def test_an_affine_last_norm_is_not_tfaces(modules: dict[Dialect, nn.Module]) -> None:
    state = dict(modules[Dialect.TFACE].state_dict()) | {"output_layer.4.weight": torch.ones(DIMS)}
    with pytest.raises(DataError, match=r"no place in tface's IR-18.*output_layer\.4\.weight"):
        import_state(state, where="x")


def test_names_of_nobody_are_refused() -> None:
    with pytest.raises(DataError, match=re.escape("x: its tensors (a, b, c, d and 1 more) are named neither")):
        dialect_of(list("abcde"), "x")


def test_an_unknown_colour_order_is_refused(state: dict[str, Tensor]) -> None:
    with pytest.raises(ConfigError, match="'GBR': must be RGB or BGR"):
        import_state(state, where="x", colour_order="GBR")
