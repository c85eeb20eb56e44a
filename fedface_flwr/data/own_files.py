# SPDX-License-Identifier: Apache-2.0
"""Names of the files that the project's own commands put beside pictures and records, which are no part of a set."""

from __future__ import annotations

ORIGIN = "origin.json"
"""The request that made a set, and what came of it."""
BROKEN = "broken.txt"
"""A line for each picture that was left out of a set, and for each fault of its source."""
IDENTITIES = "identities.txt"
"""A line ``label<TAB>name`` for each identity of a converted set."""
MANIFEST = "manifest.json"
"""What went into which part of a split set."""
PROPERTY = "property"
"""Identities, height and width of a RecordIO set."""

ALGORITHMS = ("sha256", "sha512", "sha384", "sha224", "sha1", "md5", "blake2b", "blake2s")
"""What checksums may be made by."""


def sums_name(algorithm: str) -> str:
    """Return what a folder's checksum file is called."""
    return f"{algorithm.upper()}SUMS"


OWN_FILES = frozenset({ORIGIN, BROKEN, IDENTITIES, MANIFEST, PROPERTY, *map(sums_name, ALGORITHMS)})
"""What every reader of a folder of pictures passes over beside the identity folders."""
