# SPDX-License-Identifier: Apache-2.0
"""Looks at every picture of a set and counts what there is."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.images import decode, decode_photo
from fedface_flwr.data.sets import Images
from fedface_flwr.dataprep.colour import SAMPLE, ColourGuess, guess, red_over_blue
from fedface_flwr.dataprep.names import repeats
from fedface_flwr.dataprep.pictures import Look, look
from fedface_flwr.dataprep.record_faults import size_faults
from fedface_flwr.dataprep.records import RecordIOSource
from fedface_flwr.dataprep.source import Source, count_identities
from fedface_flwr.dataprep.work import chunks
from fedface_flwr.errors import DataError
from fedface_flwr.reporting.bars import Reporter

_DIGEST = 16


@dataclass(frozen=True)
class Duplicates:
    """Pictures that are the same.

    Attributes
    ----------
    groups : list of list of str
        Keys of equal pictures.
    extra : int
        Pictures above one in each group.
    across : list of list of str
        The groups whose pictures are under several identities, as ``identity: key``.
    """

    groups: list[list[str]]
    extra: int
    across: list[list[str]]


@dataclass(frozen=True)
class Inspection:
    """What a set holds.

    Attributes
    ----------
    kind : str
        Its format.
    images : int
        Pictures that can be decoded.
    identities : int
        Identities that have a picture, broken or not; for a verification pack 0.
    pairs : dict
        For a verification pack ``matching``, ``differing`` and ``identical``: pairs of one picture with itself.
    per_identity : dict
        ``min``, ``median``, ``mean`` and ``max`` of an identity's pictures, and ``histogram``: how many identities have
        1, 2-3, 4-7, 8-15 ... pictures.
    formats, sizes, modes : dict
        Pictures of each format, of each ``WIDTHxHEIGHT`` and of each of Pillow's kinds of pixels.
    bytes : int
        Sum of the encoded pictures' lengths.
    broken : list of str
        A text for each broken record or picture.
    faults : list of str
        A text for what else is wrong with the set and costs no picture.
    not_square : int
        Pictures that are whole, but not aligned faces.
    duplicates : Duplicates
        Pictures of equal bytes.
    pixel_duplicates : Duplicates or None
        Pictures of equal decoded pixels, where asked for.
    colour : ColourGuess
        Whether red and blue were exchanged.
    """

    kind: str
    images: int
    identities: int
    pairs: dict[str, int]
    per_identity: dict[str, Any]
    formats: dict[str, int]
    sizes: dict[str, int]
    modes: dict[str, int]
    bytes: int
    broken: list[str]
    faults: list[str]
    not_square: int
    duplicates: Duplicates
    pixel_duplicates: Duplicates | None
    colour: ColourGuess

    def as_json(self) -> dict[str, Any]:
        """Return the fields in JSON's types."""
        return asdict(self)


@dataclass(frozen=True)
class _Seen:
    look: Look
    where: str
    size: int
    digest: bytes
    pixel_digest: bytes
    redness: float | None


def inspect(source: Source, *, pixels: bool, reporter: Reporter) -> Inspection:
    """Read and decode every picture of a source; broken ones are listed and do not stop it.

    Parameters
    ----------
    source : Source
        The set.
    pixels : bool
        Look for equal decoded pixels too, which finds pictures that were encoded anew without loss.
    reporter : Reporter
        Shows how far it is.
    """
    count = len(source.labels)
    sampled = set(np.linspace(0, count - 1, min(SAMPLE, count), dtype=np.int64).tolist()) if count else set()
    tally = _Tally(source, pixels)
    looking = chunks(lambda index: _see(source, index, pixels, index in sampled), 0, count, "inspecting", reporter)
    for first, results in looking:
        for index, seen in enumerate(results, first):
            tally.add(index, seen)
    return tally.inspection()


class _Tally:
    """Counts what was seen; holds numbers and digests, no pictures."""

    def __init__(self, source: Source, pixels: bool) -> None:
        count = len(source.labels)
        self._source = source
        self._broken = list(source.problems)
        self._whole = np.zeros(count, dtype=np.bool_)
        self._digests = np.zeros((count, _DIGEST), dtype=np.uint8)
        self._pixel_digests = np.zeros((count if pixels else 0, _DIGEST), dtype=np.uint8)
        self._formats, self._sizes, self._modes = Counter[str](), Counter[str](), Counter[str]()
        self._bytes = self._not_square = 0
        self._redness: list[float] = []
        self._sides: dict[int, str] = {}

    def add(self, index: int, seen: _Seen | DataError) -> None:
        if isinstance(seen, DataError):
            self._broken.append(str(seen))
            return
        self._whole[index] = True
        self._digests[index] = np.frombuffer(seen.digest, dtype=np.uint8)
        if len(self._pixel_digests):
            self._pixel_digests[index] = np.frombuffer(seen.pixel_digest, dtype=np.uint8)
        self._formats[seen.look.format] += 1
        self._sizes[f"{seen.look.width}x{seen.look.height}"] += 1
        self._modes[seen.look.mode] += 1
        self._bytes += seen.size
        if seen.look.width == seen.look.height:
            self._sides.setdefault(seen.look.width, seen.where)
        else:
            self._not_square += 1
        if seen.redness is not None:
            self._redness.append(seen.redness)

    def inspection(self) -> Inspection:
        source, is_pack = self._source, self._source.kind == "pack"
        return Inspection(
            kind=source.kind,
            images=int(self._whole.sum()),
            identities=0 if is_pack else count_identities(source),
            pairs=self._pairs() if is_pack else {},
            per_identity={} if is_pack else per_identity(source),
            formats=dict(self._formats.most_common()),
            sizes=dict(self._sizes.most_common()),
            modes=dict(self._modes.most_common()),
            bytes=self._bytes,
            broken=self._broken,
            faults=self._faults(),
            not_square=self._not_square,
            duplicates=self._duplicates(self._digests),
            pixel_duplicates=self._duplicates(self._pixel_digests) if len(self._pixel_digests) else None,
            colour=guess(self._redness),
        )

    def _faults(self) -> list[str]:
        source = self._source
        own = size_faults(source.faces.folder, self._sides) if isinstance(source, RecordIOSource) else ()
        return [*source.faults, *own]

    def _pairs(self) -> dict[str, int]:
        labels, digests = self._source.labels[::2], self._digests
        same = self._whole[::2] & self._whole[1::2] & (digests[::2] == digests[1::2]).all(axis=1)
        matching = int(labels.sum())
        return {"matching": matching, "differing": len(labels) - matching, "identical": int(same.sum())}

    def _duplicates(self, digests: npt.NDArray[np.uint8]) -> Duplicates:
        source, rows = self._source, np.flatnonzero(self._whole)
        groups = [rows[group].tolist() for group in repeats(digests[rows])]
        across = [] if source.kind == "pack" else [g for g in groups if len(set(source.labels[g].tolist())) > 1]
        return Duplicates(
            groups=[[source.key(index) for index in group] for group in groups],
            extra=sum(len(group) - 1 for group in groups),
            across=[[f"{source.identities[source.labels[i]]}: {source.key(i)}" for i in group] for group in across],
        )


def per_identity(source: Source) -> dict[str, Any]:
    """Return statistics of how many pictures an identity has."""
    counts = np.bincount(source.labels)
    counts = counts[counts > 0]
    bins = np.bincount(np.frexp(counts.astype(np.float64))[1] - 1)
    histogram = {_range(power): int(number) for power, number in enumerate(bins)}
    return {
        "min": int(counts.min()),
        "median": float(np.median(counts)),
        "mean": float(counts.mean()),
        "max": int(counts.max()),
        "histogram": histogram,
    }


def _range(power: int) -> str:
    low, high = 1 << power, (2 << power) - 1
    return str(low) if low == high else f"{low}-{high}"


def _see(source: Source, index: int, pixels: bool, sampled: bool) -> _Seen:
    data, where = source.read(index)
    seen = look(data, where)
    decoded = _decoded(data, seen, where)
    pixel_digest = hashlib.blake2b(digest_size=_DIGEST)
    if pixels:
        pixel_digest.update(repr(decoded.shape).encode())
        pixel_digest.update(np.ascontiguousarray(decoded).data)
    return _Seen(
        seen,
        where,
        len(data),
        hashlib.blake2b(data, digest_size=_DIGEST).digest(),
        pixel_digest.digest(),
        red_over_blue(decoded) if sampled else None,
    )


def _decoded(data: bytes, seen: Look, where: str) -> Images:
    """Decode to (3, height, width); only what no training set could take is an error, and a shape is not."""
    if seen.width == seen.height:
        return decode(data, seen.width, where)
    return decode_photo(data, where).transpose(2, 0, 1)
