# SPDX-License-Identifier: Apache-2.0
"""Damages files in the ways that disks, transfers and hostile people do; a seed decides every byte."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import yaml

EXTREMES = (0, 1, -1, 2**15 - 1, 2**31 - 1, -(2**31), 2**32 - 1, 2**40, 2**63 - 1, -(2**63))
WORDS = (
    *(
        b"0 -0 -1 1 00 +1 1_0 0x10 1e5 1e308 1e999 -1e999 nan inf -inf NaN null true .. . / // ../../../etc/passwd"
    ).split(),
    b"/dev/zero /dev/stdin".split()[0],
    *(str(number).encode() for number in (2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**18, 10**19, 10**40)),
    b"9" * 5000,
    "٣".encode(),  # digits that int() takes and str.isdigit() knows,
    "²".encode(),  # and one that only the latter does
    "\u2028\u0085\x1c\x0c".encode(),
    "\ufeff".encode(),
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\0",
    b"\r\n",
    b"\n\n",
    b"\t",
    b" ",
    b",",
    b'"',
    b"'",
    b"#",
    b"\\",
    b"\x1b[2J",
    b"",
    b"a" * 300,
    b"b/" * 3000,
    b"[" * 3000,
    b"(" * 300,
)
"""What a text's fields are replaced by."""

_FIELD = re.compile(rb"[^\s,:\"'\[\]{}()]+")


class Mutator:
    """Damages files.

    Parameters
    ----------
    rng : Generator
        Decides everything.
    words : sequence of bytes
        The format's own words, by which fields are replaced besides ``WORDS``; empty in a binary file.
    """

    def __init__(self, rng: np.random.Generator, words: Sequence[bytes] = ()) -> None:
        self.rng = rng
        self._words = (*WORDS, *words, *words, *words)
        self._is_text = bool(words)

    def mutate(self, seeds: Sequence[bytes]) -> bytes:
        """Return one of the files with one to six damages."""
        data = seeds[self.below(len(seeds))]
        for _ in range(min(6, int(self.rng.geometric(0.5)))):
            ways = _TEXT if self._is_text and self.below(4) else _BINARY
            data = ways[self.below(len(ways))](self, data, seeds)
        return data

    def below(self, end: int) -> int:
        """Return a whole number from 0 below ``end``, or 0."""
        return int(self.rng.integers(end)) if end > 1 else 0

    def span(self, data: bytes) -> tuple[int, int]:
        """Return the bounds of a part, of any length but rather a short one."""
        start = self.below(len(data) + 1)
        longest = len(data) - start if self.below(4) == 0 else min(16, len(data) - start)
        return start, start + self.below(longest + 1)

    def flip(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        at = self.below(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self.below(8)]) + data[at + 1 :] if data else data

    def put(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        at = self.below(len(data))
        return data[:at] + bytes([self.below(256)]) + data[at + 1 :]

    def truncate(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return data[: self.below(len(data) + 1)]

    def insert(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        at, length = self.below(len(data) + 1), 1 + self.below(64)
        return data[:at] + (self.rng.bytes(length) if self.below(2) else bytes(length)) + data[at:]

    def delete(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        start, end = self.span(data)
        return data[:start] + data[end:]

    def duplicate(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        start, end = self.span(data)
        times = 1 if self.below(8) else 2000 // (end - start + 1)
        return data[:end] + data[start:end] * times + data[end:]

    def swap(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        (a, b), (c, d) = sorted((self.span(data), self.span(data)))
        return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:] if b <= c else data

    def splice(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        other = seeds[self.below(len(seeds))]
        return data[: self.below(len(data) + 1)] + other[self.below(len(other) + 1) :]

    def extreme(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        size, order = (2, 4, 8)[self.below(3)], "<>"[self.below(2)]
        value = EXTREMES[self.below(len(EXTREMES))] & (1 << 8 * size) - 1
        at = self.below(max(1, len(data) - size + 1))
        if self.below(2):
            at -= at % 4
        return data[:at] + struct.pack(order + {2: "H", 4: "I", 8: "Q"}[size], value) + data[at + size :]

    def word(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        fields = [match.span() for match in _FIELD.finditer(data)] or [(0, 0)]
        start, end = fields[self.below(len(fields))]
        return data[:start] + self._words[self.below(len(self._words))] + data[end:]

    def add_word(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        at = self.below(len(data) + 1)
        return data[:at] + self._words[self.below(len(self._words))] + data[at:]

    def line(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        lines = data.split(b"\n")
        at, to = self.below(len(lines)), self.below(len(lines))
        match self.below(4):
            case 0:
                del lines[at]
            case 1:
                lines.insert(to, lines[at])
            case 2:
                lines[at], lines[to] = lines[to], lines[at]
            case _:
                lines[at] = b" ".join(lines[at : to + 1])
        return b"\n".join(lines)

    def endings(self, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return data.replace(b"\n", (b"\r\n", b"\r", b" \n", b"\n\n", b"\x0b")[self.below(5)])


_BINARY: tuple[Callable[[Mutator, bytes, Sequence[bytes]], bytes], ...] = (
    Mutator.flip,
    Mutator.put,
    Mutator.truncate,
    Mutator.insert,
    Mutator.delete,
    Mutator.duplicate,
    Mutator.swap,
    Mutator.splice,
    Mutator.extreme,
    Mutator.extreme,
)
_TEXT = (Mutator.word, Mutator.word, Mutator.word, Mutator.add_word, Mutator.line, Mutator.endings)

VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    2**63,
    10**400,
    "",
    "x",
    "\0",
    "\ud800",
    "²",
    "1e999",
    [],
    {},
    [None],
    {"a": 1},
    [[]],
    {"": {}},
)
"""What a value in JSON or YAML is replaced by."""


def odd_values(mutator: Mutator, data: bytes) -> bytes:
    """Return a JSON or YAML file with some values of other types, or gone, or under another key."""
    content = {"": yaml.safe_load(data)}
    for _ in range(1 + mutator.below(3)):
        places = list(_places(content))
        if not places:
            break
        holder, key = places[mutator.below(len(places))]
        value = VALUES[mutator.below(len(VALUES))]
        match mutator.below(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder["other"] = holder.pop(key)
            case 2:
                holder[key] = [holder[key]]
            case _:
                holder[key] = json.loads(json.dumps(value))
    return json.dumps(content.get(""), ensure_ascii=bool(mutator.below(2))).encode("utf-8", "surrogatepass")


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(content) if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from _places(content[key])
