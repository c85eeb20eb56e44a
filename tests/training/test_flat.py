# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from tiny import first_model, tiny_config
from torch import nn

from fedface_flwr.errors import StateError
from fedface_flwr.federation.layout import Kind, ModelState
from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.training.flat import FlatModel


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.BatchNorm1d(2, affine=False))


def received(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), dtype=array.dtype)


def test_layout_of_a_small_module_written_out() -> None:
    entries = [(e.name, e.shape, e.kind) for e in FlatModel(small()).layout.entries]
    assert entries == [
        ("0.weight", (4, 3), Kind.PARAMETER),
        ("0.bias", (4,), Kind.PARAMETER),
        ("1.weight", (4,), Kind.PARAMETER),
        ("1.bias", (4,), Kind.PARAMETER),
        ("2.weight", (2, 4), Kind.PARAMETER),
        ("2.bias", (2,), Kind.PARAMETER),
        ("1.running_mean", (4,), Kind.RUNNING_MEAN),
        ("1.running_var", (4,), Kind.RUNNING_VARIANCE),
        ("3.running_mean", (2,), Kind.RUNNING_MEAN),
        ("3.running_var", (2,), Kind.RUNNING_VARIANCE),
        ("1.num_batches_tracked", (), Kind.COUNTER),
        ("3.num_batches_tracked", (), Kind.COUNTER),
    ]


def test_names_are_the_modules_own_and_values_are_kept() -> None:
    module = IRBackbone(18, width=2, input_size=16, embedding=4)
    before = copy.deepcopy(module.state_dict())
    flat = FlatModel(module)
    tensors = flat.state().tensors(flat.layout)
    assert set(tensors) == set(before)
    assert flat.layout.num_parameters == sum(p.numel() for p in module.parameters())
    for name, tensor in before.items():
        np.testing.assert_array_equal(tensors[name], tensor.numpy(), err_msg=name)


def test_the_module_computes_what_it_computed_before() -> None:
    module, images = IRBackbone(18, width=2, input_size=16, embedding=4), torch.randn(3, 3, 16, 16)
    before = module.eval()(images)
    FlatModel(module)
    assert torch.equal(module(images), before)


def test_the_vector_is_the_module() -> None:
    flat = FlatModel(small())
    module = flat.module
    assert isinstance(module, nn.Sequential)
    flat.values.zero_()
    assert not any(p.any() for p in module.parameters())
    assert not torch.cat([module[1].running_mean, module[1].running_var]).any()
    with torch.no_grad():
        module[0].weight[0, 1] = 5.0
    assert flat.values[1] == 5.0
    module(torch.randn(6, 3))
    assert flat.counters.tolist() == [1, 1]


def test_an_optimizer_step_and_a_forward_pass_reach_the_vector() -> None:
    flat = FlatModel(small())
    before = flat.values.clone()
    optimizer = torch.optim.SGD(flat.module.parameters(), lr=0.5)
    flat.module(torch.randn(6, 3)).pow(3).sum().backward()
    optimizer.step()
    count = flat.layout.num_parameters
    expected = before[:count] - 0.5 * torch.cat(
        [p.grad.ravel() for p in flat.module.parameters() if p.grad is not None]
    )
    torch.testing.assert_close(flat.values[:count], expected, rtol=0, atol=1e-7)
    assert not torch.isclose(flat.values[count:], before[count:]).any()


def test_state_is_a_copy_and_load_brings_it_back() -> None:
    flat = FlatModel(small())
    kept = flat.state()
    values = kept.values.copy()
    flat.module(torch.randn(6, 3))
    flat.values.add_(1.0)
    np.testing.assert_array_equal(kept.values, values)
    np.testing.assert_array_equal(kept.counters, [0, 0])
    flat.load(kept)
    np.testing.assert_array_equal(flat.state().values, values)
    flat.values.add_(1.0)
    np.testing.assert_array_equal(kept.values, values)


def test_received_read_only_arrays_are_loaded_without_a_warning() -> None:
    flat = FlatModel(small())
    values = np.arange(flat.layout.num_values, dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flat.load(ModelState(received(values), received(np.array([7, 8]))))
    np.testing.assert_array_equal(flat.state().values, values)
    assert flat.counters.tolist() == [7, 8]


def test_a_module_without_batch_normalisation_has_no_counters_even_received() -> None:
    flat = FlatModel(nn.Linear(2, 1))
    flat.load(ModelState(received(np.ones(3, np.float32)), received(np.empty(0, np.int64))))
    assert flat.values.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("values", "counters"), [(-1, 0), (1, 0), (0, -1), (0, 1)])
def test_a_model_of_other_lengths_is_refused(values: int, counters: int) -> None:
    flat = FlatModel(small())
    before = flat.values.clone()
    state = ModelState(
        np.zeros(flat.layout.num_values + values, np.float32), np.zeros(flat.layout.num_counters + counters, np.int64)
    )
    with pytest.raises(StateError, match="does not fit a layout of 46 and 2"):
        flat.load(state)
    assert torch.equal(flat.values, before)


def test_other_buffers_cannot_be_combined() -> None:
    module = small()
    module[0].register_buffer("mask", torch.ones(3))
    with pytest.raises(StateError, match=r"buffer 0\.mask: only batch normalisation's"):
        FlatModel(module)


def test_parameter_views_cut_a_vector_as_the_parameters_lie() -> None:
    flat = FlatModel(small())
    vector = torch.arange(float(flat.layout.num_parameters))
    views = flat.parameter_views(vector)
    assert [v.shape for v in views] == [p.shape for p in flat.module.parameters()]
    torch.testing.assert_close(torch.cat([v.ravel() for v in views]), vector)
    views[0].zero_()
    assert not vector[:12].any()
    assert all(
        torch.equal(v, p) for v, p in zip(flat.parameter_views(flat.values), flat.module.parameters(), strict=True)
    )


def test_the_first_model_of_a_run_is_a_function_of_its_seed() -> None:
    first, again, other = (first_model(tiny_config(f"seed={seed}")) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)
