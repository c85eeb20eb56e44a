# SPDX-License-Identifier: Apache-2.0
"""What a process answers by: a service must answer neither a later version of the app nor under a new policy."""

from __future__ import annotations

import hashlib
from pathlib import Path

from clients.node import Node

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("clients", "fedface_flwr")


def version(node: Node) -> str:
    """Return a digest of the code that a silo runs and of its policy.

    The installed app and one that Flower delivered may be the same code in two places.
    """
    state = hashlib.sha256(repr(node.policy).encode())
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            content = path.read_bytes()
            state.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode())
            state.update(content)
    return state.hexdigest()
