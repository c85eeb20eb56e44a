# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch

from fedface_flwr.errors import StateError
from fedface_flwr.federation.checkpoint import FORMAT, load_backbone, save_backbone
from fedface_flwr.federation.layout import Entry, Kind, Layout, ModelState
from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.training.flat import FlatModel

LAYOUT = Layout(
    (
        Entry("linear.weight", (2, 3), Kind.PARAMETER),
        Entry("norm.running_mean", (2,), Kind.RUNNING_MEAN),
        Entry("norm.num_batches_tracked", (), Kind.COUNTER),
    )
)
STATE = ModelState(np.arange(8, dtype=np.float32), np.array([2**40 + 1]))


def whole() -> dict[str, np.ndarray]:
    return {
        "linear.weight": np.ones((2, 3), np.float32),
        "norm.running_mean": np.ones(2, np.float32),
        "norm.num_batches_tracked": np.array(3, np.int64),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_model_and_metadata_come_back_exactly(path: Path) -> None:
    save_backbone(path, LAYOUT, STATE, {"colour_order": "RGB", "round": "3"})
    state, metadata = load_backbone(path, LAYOUT)
    np.testing.assert_array_equal(state.values, STATE.values)
    np.testing.assert_array_equal(state.counters, STATE.counters)
    assert (state.values.dtype, state.counters.dtype) == (np.float32, np.int64)
    assert metadata == {"format": FORMAT, "colour_order": "RGB", "round": "3"}


def test_metadata_lie_in_the_file_in_the_order_of_their_keys(path: Path) -> None:
    metadata = {f"{letter}{number}": "ü" for letter in "zxabq" for number in (10, 2, 1)}
    save_backbone(path, LAYOUT, STATE, metadata)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length])
    assert list(header["__metadata__"].items()) == sorted((metadata | {"format": FORMAT}).items())
    # The library, which reads whatever it takes to be whole, finds the same.
    assert load_backbone(path, LAYOUT)[1] == metadata | {"format": FORMAT}


def test_the_file_is_a_state_dict_that_plain_torch_can_load(path: Path) -> None:
    torch.manual_seed(0)
    flat = FlatModel(IRBackbone(18, width=2, input_size=16, embedding=4))
    flat.module(torch.randn(4, 3, 16, 16))
    save_backbone(path, flat.layout, flat.state(), {})
    other = IRBackbone(18, width=2, input_size=16, embedding=4)
    other.load_state_dict(load_torch(path), strict=True)
    for (name, tensor), expected in zip(other.state_dict().items(), flat.module.state_dict().values(), strict=True):
        assert torch.equal(tensor, expected), name
    again = FlatModel(other)
    again.load(load_backbone(path, again.layout)[0])
    assert torch.equal(again.values, flat.values)
    assert torch.equal(again.counters, flat.counters)


def test_saving_the_same_model_twice_writes_the_same_bytes(path: Path) -> None:
    other = path.with_name("other.safetensors")
    save_backbone(path, LAYOUT, STATE, {"round": "3", "method": "pfm"})
    save_backbone(other, LAYOUT, STATE, {"round": "3", "method": "pfm"})
    tensors, others = load_file(path), load_file(other)
    assert all(tensors[name].tobytes() == others[name].tobytes() for name in tensors)
    assert load_backbone(path, LAYOUT)[1] == load_backbone(other, LAYOUT)[1]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    save_backbone(path, LAYOUT, STATE, {})
    before = path.read_bytes()
    large = {"note": "x" * 100_000}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StateError, match=r"cannot be written .*File too large"):
            save_backbone(path, LAYOUT, STATE, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_no_file(path: Path) -> None:
    with pytest.raises(StateError, match=r"model\.safetensors: not a readable safetensors file"):
        load_backbone(path, LAYOUT)


@pytest.mark.parametrize("keep", [0, 5, 100, -1], ids=["empty", "no header", "in the header", "last byte"])
def test_a_truncated_file(path: Path, keep: int) -> None:
    save_backbone(path, LAYOUT, STATE, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StateError, match=r"model\.safetensors: not a readable safetensors file"):
        load_backbone(path, LAYOUT)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_another_format(path: Path, metadata: dict[str, str] | None) -> None:
    save_file(whole(), path, metadata=metadata)
    with pytest.raises(StateError, match=f"its format is .*, not '{FORMAT}'"):
        load_backbone(path, LAYOUT)


def test_a_tensor_too_many(path: Path) -> None:
    save_file({**whole(), "head.weight": np.ones(3, np.float32)}, path, metadata={"format": FORMAT})
    with pytest.raises(StateError, match=r"holds tensor head\.weight, which the configured model does not have"):
        load_backbone(path, LAYOUT)


@pytest.mark.parametrize("name", [entry.name for entry in LAYOUT.entries])
def test_a_tensor_too_few(path: Path, name: str) -> None:
    tensors = whole()
    del tensors[name]
    save_file(tensors, path, metadata={"format": FORMAT})
    with pytest.raises(StateError, match=f"lacks tensor {name}"):
        load_backbone(path, LAYOUT)


@pytest.mark.parametrize(
    ("name", "tensor", "found", "wanted"),
    [
        ("linear.weight", np.ones((3, 2), np.float32), "float32[3, 2]", "float32[2, 3]"),
        ("linear.weight", np.ones((2, 3), np.float16), "float16[2, 3]", "float32[2, 3]"),
        ("norm.num_batches_tracked", np.array([1]), "int64[1]", "int64[]"),
        ("norm.num_batches_tracked", np.array(1.0, np.float32), "float32[]", "int64[]"),
    ],
)
def test_a_tensor_of_another_shape_or_type(path: Path, name: str, tensor: np.ndarray, found: str, wanted: str) -> None:
    save_file({**whole(), name: tensor}, path, metadata={"format": FORMAT})
    with pytest.raises(StateError) as caught:
        load_backbone(path, LAYOUT)
    assert str(caught.value) == f"{path}: tensor {name} is {found}, the configured model has {wanted}"
