# SPDX-License-Identifier: Apache-2.0
"""Checksum files, as ``sha256sum``, ``md5sum``, ``b2sum`` and their kin write and check them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedface_flwr.data.own_files import ALGORITHMS
from fedface_flwr.errors import DataError
from fedface_flwr.files import write_text
from fedface_flwr.reporting.bars import Advance

_CHUNK = 1 << 20
# By the digest's length in hexadecimal digits; two are of one length only where either may be meant.
_BY_LENGTH = {
    length: tuple(name for name in ALGORITHMS if 2 * hashlib.new(name).digest_size == length)
    for length in (32, 40, 56, 64, 96, 128)
}
_PLAIN = re.compile(r"(\\?)([0-9a-fA-F]+) [ *](.+)")
_TAGGED = re.compile(r"(\\?)([A-Za-z0-9-]+) \((.+)\) = ([0-9a-fA-F]+)")


@dataclass(frozen=True)
class Sum:
    """One line of a checksum file: the file's name, the digest in lower case, and what may have made it."""

    name: str
    digest: str
    algorithms: tuple[str, ...]


def read_sums(path: Path) -> list[Sum]:
    """Read a checksum file: ``DIGEST  NAME``, ``DIGEST *NAME`` or ``ALGORITHM (NAME) = DIGEST``.

    Raises
    ------
    DataError
        If a line is none of these, a digest has no known algorithm's length, or there is no line.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    sums = [
        _sum(line.rstrip("\r"), f"{path}: line {number}")
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip() and not line.startswith("#")
    ]
    if not sums:
        raise DataError(f"{path}: holds no checksums")
    return sums


def _sum(line: str, where: str) -> Sum:
    if tagged := _TAGGED.fullmatch(line):
        escaped, algorithm, name, digest = tagged.groups()
        normal = algorithm.lower().replace("-", "")
        algorithms = tuple(known for known in _BY_LENGTH.get(len(digest), ()) if known == normal)
    elif plain := _PLAIN.fullmatch(line):
        escaped, digest, name = plain.groups()
        algorithms = _BY_LENGTH.get(len(digest), ())
    else:
        raise DataError(f"{where}: not a checksum and a file's name")
    if not algorithms:
        raise DataError(f"{where}: {digest[:16]}... is no checksum of {', '.join(ALGORITHMS)}")
    if "\0" in name:
        raise DataError(f"{where}: a file's name cannot hold a zero byte")
    return Sum(_unescaped(name) if escaped else name, digest.lower(), algorithms)


def _unescaped(name: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), name)


def _escaped(name: str) -> tuple[str, str]:
    changed = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return ("\\" if changed != name else ""), changed


def digests_of(path: Path, algorithms: tuple[str, ...], advance: Advance) -> dict[str, str]:
    """Return a file's digests, reading it once; DataError if it cannot be read."""
    hashes = {name: hashlib.new(name, usedforsecurity=False) for name in algorithms}
    try:
        with path.open("rb") as file:
            while block := file.read(_CHUNK):
                for each in hashes.values():
                    each.update(block)
                advance(len(block))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    return {name: each.hexdigest() for name, each in hashes.items()}


def write_sums(files: list[tuple[str, Path]], out: Path, algorithm: str, advance: Advance) -> None:
    """Write the checksums of named files, whole or not at all, in the form of ``sha256sum``."""

    def lines() -> Iterator[str]:
        for name, path in files:
            mark, written = _escaped(name)
            yield f"{mark}{digests_of(path, (algorithm,), advance)[algorithm]}  {written}\n"

    text = "".join(lines())
    try:
        write_text(out, text)
    except UnicodeEncodeError as error:
        raise DataError(f"{out}: a file's name is not in UTF-8; rename it") from error
