# SPDX-License-Identifier: Apache-2.0
"""The file in which a silo's owner sets what the silo lets itself be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.policy import SiloPolicy
from fedface_flwr.errors import ConfigError


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert SiloPolicy.load(tmp_path / "policy.toml") == SiloPolicy(8, 32, 0.01, 100, 16, 20_000, 1_000_000, 10.0)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    policy = SiloPolicy(max_candidates=3, score_resolution=1e-5, max_rate=0.5)
    (tmp_path / "policy.toml").write_text(policy.to_toml())
    assert SiloPolicy.load(tmp_path / "policy.toml") == policy


def test_a_file_may_set_one_key_alone(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("score_resolution = 1\n")
    policy = SiloPolicy.load(tmp_path / "policy.toml")
    assert policy == SiloPolicy(score_resolution=1.0)
    assert type(policy.score_resolution) is float


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("max_candidate = 3", "no such key: max_candidate; known are max_candidates"),
        ("max_candidates = 0", "max_candidates=0: must be a whole number of at least 1"),
        ("max_tests = 1.5", "max_tests=1.5: must be a whole number"),
        ("max_tests = true", "max_tests=True: must be a whole number"),
        ("score_resolution = 0", "score_resolution=0: must be a number above 0"),
        ("max_rate = inf", "max_rate=inf: must be a number above 0"),
        ("max_rate = nan", "max_rate=nan: must be a number above 0"),
        ("min_pairs = '100'", "min_pairs='100'"),
        ("min_pairs", "not a readable TOML file"),
    ],
)
def test_a_policy_that_cannot_hold_names_file_and_key(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        SiloPolicy.load(path)
    assert str(caught.value).startswith(str(path))
    assert reason in str(caught.value)
