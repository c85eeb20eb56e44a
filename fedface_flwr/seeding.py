# SPDX-License-Identifier: Apache-2.0
"""Everything that a run draws comes from its seed, each use from a stream of its own."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed for one use, independent of every other use's.

    Parameters
    ----------
    seed : int
        The run's seed.
    names : str or int
        What the stream is for, such as ``("flip", "celeba", 12)``.
    """
    text = "\x1f".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
