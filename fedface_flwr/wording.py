# SPDX-License-Identifier: Apache-2.0
"""How many of a thing, in words."""

from __future__ import annotations


def numbered(count: int, thing: str) -> str:
    """Return how many there are of a thing, as one says it: ``1 picture``, ``2 identities``."""
    plural = f"{thing.removesuffix('y')}ies" if thing.endswith("y") else f"{thing}s"
    return f"{count:,} {thing if count == 1 else plural}"
