# SPDX-License-Identifier: Apache-2.0
"""Without a door, as on a machine without nginx: parties of this machine alone, at the SuperLink's loopback port."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from federation import Deployment, Member

ECHO = Path(__file__).parent / "echo"


@pytest.mark.timeout(600)
def test_parties_of_this_machine_join_without_a_door(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with Deployment(tmp_path, [Member("alpha", "trainer")], door=False) as federation:
        assert f"open at 127.0.0.1:{federation.control_port}, to parties on this machine" in federation.console(
            "server"
        )
        assert not (federation.kits / "server/run/door.pid").exists()
        federation.flwr("run", str(ECHO), federation.link, "--run-config", f'megabytes=1 out="{out}"')
        federation.wait_for(out.exists, "the echo app has written its result")
        assert json.loads(out.read_text()) == {"nodes": ["alpha"], "same": {"alpha": True}}
        assert federation.stop("alpha") == federation.stop("server") == 0
        # A fork server that is still importing notices afterwards that its SuperExec has ended.
        federation.wait_for(lambda: federation.processes() == {}, "no process is left")
