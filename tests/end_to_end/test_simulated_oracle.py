# SPDX-License-Identifier: Apache-2.0
"""Oracle (a) in a full simulated run: with K = 1, PFM is central SGD with momentum on the mean gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from central_sgd import ONE_STEP, central_sgd
from runs import TINY, finish, start
from safetensors.numpy import load_file

from fedface_flwr.compose import compose_config
from fedface_flwr.training.backbone import build_backbone

OVERRIDES = ("strategy=pfm", *ONE_STEP)


@pytest.mark.timeout(900)
def test_pfm_with_one_local_step_is_central_sgd_with_momentum(tmp_path: Path) -> None:
    code, out, err = finish(start(tmp_path, *OVERRIDES))
    assert code == 0, out + err
    trained = load_file(tmp_path / "run" / "checkpoint.safetensors")
    config = compose_config([*TINY, *OVERRIDES], {"run.dir": "unused"})
    expected = central_sgd(config, tmp_path / "cache")
    first = {name: p.detach().numpy() for name, p in build_backbone(config.model, config.seed).named_parameters()}
    for name, value in expected.items():
        # The run computes in float32; what it learned must stand far above what rounding does.
        np.testing.assert_allclose(trained[name], value, atol=5e-6, err_msg=name)
    moved = max(np.abs(value - first[name]).max() for name, value in expected.items())
    assert moved > 0.01
