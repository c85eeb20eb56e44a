# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny import tiny_config

from fedface_flwr.errors import ConfigError
from fedface_flwr.training.backbone import autocast, build_backbone, resolve_device


def test_every_model_option_reaches_the_backbone() -> None:
    model = dataclasses.replace(tiny_config().model, depth=34, width=3, input_size=20, embedding=5, dropout=0.25)
    backbone = build_backbone(model)
    assert backbone(torch.randn(2, 3, 20, 20)).shape == (2, 5)
    assert backbone.stem[0].out_channels == 3
    assert [len(stage) for stage in backbone.stages] == [3, 4, 6, 3]
    assert backbone.output[1].p == 0.25


def test_first_weights_are_a_function_of_the_seed_alone() -> None:
    model = tiny_config().model
    torch.manual_seed(1)
    first = build_backbone(model, 5).state_dict()
    torch.manual_seed(2)
    again, other = build_backbone(model, 5).state_dict(), build_backbone(model, 6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["stem.0.weight"], other["stem.0.weight"])


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["abacus", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^federation\.device='{name}': not available here"):
        resolve_device(name)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_the_backbone_computes_in_the_precision_asked_for(precision: str, dtype: torch.dtype) -> None:
    with autocast(torch.device("cpu"), precision):
        assert torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype is dtype
    assert torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
