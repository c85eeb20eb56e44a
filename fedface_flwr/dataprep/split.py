# SPDX-License-Identifier: Apache-2.0
"""Splits a set into disjoint, even parts, as for twelve parties of three sets (arXiv 2105.02501, section 4)."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedface_flwr.data.own_files import MANIFEST
from fedface_flwr.dataprep.building import Builder, Built, Plan
from fedface_flwr.dataprep.convert import faults_of, picture, request_of, require_faultless, require_identities
from fedface_flwr.dataprep.pictures import Encoding
from fedface_flwr.dataprep.source import Integers, Source
from fedface_flwr.dataprep.staging import made_of, staging, write_origin
from fedface_flwr.errors import DataError
from fedface_flwr.files import replacing
from fedface_flwr.reporting.bars import Reporter
from fedface_flwr.wording import numbered

KINDS = ("identity", "image")

_REMEDY = "fedface-data convert --skip-broken makes a set without such pictures"


@dataclass(frozen=True)
class Part:
    """One of the sets that a split made."""

    name: str
    images: int
    identities: int


def part_by_identity(source: Source, parts: int, seed: int) -> Integers:
    """Return each picture's part such that no identity is in two and the parts have about as many pictures.

    Identities are dealt, the largest first, each to the part with the fewest pictures so far; so two parts differ by
    no more than the largest identity has. Equals are ordered by a hash of seed and name, so the result depends
    neither on the order of files nor on labels.

    Raises
    ------
    DataError
        If there are fewer identities than parts.
    """
    counts = np.bincount(source.labels, minlength=len(source.identities))
    present = [label for label in range(len(counts)) if counts[label]]
    if len(present) < parts:
        raise DataError(f"{numbered(len(present), 'identity')} cannot be split into {parts} parts by identity")
    order = sorted(present, key=lambda label: (-counts[label], _drawn(seed, source.identities[label])))
    heap = sorted((0, 0, _drawn(seed, f"part {part}"), part) for part in range(parts))
    chosen = np.zeros(len(counts), dtype=np.int64)
    for label in order:
        images, identities, tie, part = heap[0]
        chosen[label] = part
        heapq.heapreplace(heap, (images + int(counts[label]), identities + 1, tie, part))
    return chosen[source.labels]


def part_by_image(source: Source, parts: int, seed: int) -> Integers:
    """Return each picture's part such that parts differ by one picture at most, whoever is on it.

    Pictures are dealt in turn in the order of a hash of seed and key, so the order of files does not matter.

    Raises
    ------
    DataError
        If there are fewer pictures than parts.
    """
    count = len(source.labels)
    if count < parts:
        raise DataError(f"{numbered(count, 'picture')} cannot be split into {parts} parts")
    drawn = np.empty(count, dtype="S16")
    for index in range(count):
        drawn[index] = _drawn(seed, source.key(index)).hex()[:16]
    part = np.empty(count, dtype=np.int64)
    part[np.argsort(drawn, kind="stable")] = np.arange(count) % parts
    return part


def split(source: Source, dest: Path, name: str, parts: int, by: str, seed: int, reporter: Reporter) -> list[Part]:
    """Write the parts as RecordIO sets ``dest/NAME-k``, with labels from 0 in each, and ``dest/manifest.json``.

    Pictures go over unchanged, but each is decoded once. An interrupted call is gone on with by the same call.

    Raises
    ------
    DataError
        If ``dest`` is taken, a picture is broken, anything else is wrong with the source, or there are too few
        identities or pictures.
    """
    require_identities(source)
    request = request_of("split", source, parts=parts, by=by, seed=seed, name=name)
    if (origin := made_of(dest, request)) is not None:
        return [Part(**part) for part in origin["result"]]
    require_faultless(source, faults_of(source))
    assign = part_by_identity if by == "identity" else part_by_image
    digits = len(str(parts))
    folders = [f"{name}-{part:0{digits}d}" for part in range(1, parts + 1)]
    plan = Plan(source.labels, source.identities, folders, assign(source, parts, seed), source.problems)
    with staging(dest, request) as stage:
        if stage.done:
            reporter.note(f"{dest}: going on after {numbered(stage.done, 'picture')}")
        builder = Builder(stage, plan, remedy=_REMEDY)
        built = builder.run(lambda index: picture(source, index, Encoding()), "splitting", reporter)
        _write_manifest(stage.set / MANIFEST, source, folders, built, {"by": by, "seed": seed})
        result = [Part(folder, one.images, one.identities) for folder, one in zip(folders, built, strict=True)]
        write_origin(stage.set, request, [part.__dict__ for part in result])
    return result


def _drawn(seed: int, name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), key=str(seed).encode(), digest_size=16).digest()


def _write_manifest(
    path: Path, source: Source, folders: list[str], built: list[Built], facts: dict[str, str | int]
) -> None:
    """Write which identity and which record went where, a part at a time."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write("{\n")
        for key, value in facts.items():
            file.write(f"{json.dumps(key)}: {json.dumps(value)},\n")
        file.write('"parts": [\n')
        for at, (folder, one) in enumerate(zip(folders, built, strict=True)):
            file.writelines(_part_text(source, folder, one))
            file.write("]}\n" if at == len(built) - 1 else "]},\n")
        file.write("]}\n")


def _part_text(source: Source, folder: str, one: Built) -> Iterator[str]:
    """Yield one part's object up to the end of its records; those are in the order of the part's keys."""
    first = np.searchsorted(one.labels, np.arange(one.identities))
    names = [source.identities[source.labels[one.source[at]]] for at in first.tolist()]
    facts = {"name": folder, "images": one.images, "identities": names}
    yield json.dumps(facts)[:-1] + ', "records": ['
    for at, index in enumerate(one.source.tolist()):
        yield (", " if at else "") + json.dumps(source.key(index))
