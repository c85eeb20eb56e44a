# SPDX-License-Identifier: Apache-2.0
"""A silo whose service ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from service_processes import end_callers, run, service_of

from clients.node import Node, deployed


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A trainer's node; its service is ended after the test."""
    node = deployed({"party": "alpha", "role": "trainer", "silo-dir": str(tmp_path / "silo")})
    assert node is not None
    yield node
    end_callers()
    run("stop", silo=node.silo_dir)
    assert service_of(node) is None
