# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several test modules need."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# The suite's verdict must depend neither on the machine's pace nor on the day.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("suite")

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of real faces and formats beside the checkout; tests that need it skip without it."""
    path = PROJECT.parent / "shared"
    if not (path / "faces").is_dir():
        pytest.skip(f"needs real face packs in {path / 'faces'}, which are not part of the project")
    return path
