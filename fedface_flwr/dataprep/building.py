# SPDX-License-Identifier: Apache-2.0
"""Writes pictures into one or several RecordIO sets, in steps that survive a crash."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.own_files import BROKEN, IDENTITIES
from fedface_flwr.data.recordio import RECORDS
from fedface_flwr.data.recordio_writer import Records, complete, framed, grouped_keys, header_record, payload
from fedface_flwr.dataprep.names import dense
from fedface_flwr.dataprep.pictures import Prepared
from fedface_flwr.dataprep.source import Integers
from fedface_flwr.dataprep.staging import Staging
from fedface_flwr.dataprep.work import chunks
from fedface_flwr.errors import DataError
from fedface_flwr.files import printable, write_text
from fedface_flwr.reporting.bars import Reporter

# One line a record that was written, kept beside the set while it is being made.
_ENTRY = np.dtype([("source", "<i8"), ("offset", "<i8")])
_ENTRIES, _HELD_BROKEN = "entries", "broken"


@dataclass(frozen=True)
class Plan:
    """What goes where.

    Attributes
    ----------
    labels : ndarray of int64, shape (n,)
        Identity of each picture of the source.
    identities : sequence of str
        Names by label.
    folders : sequence of str
        The sets' folders below the destination; ``.`` is the destination itself.
    part : ndarray of int64, shape (n,)
        Which of them each picture goes to.
    problems : sequence of str
        Records of the source that are known to be no pictures.
    faults : sequence of str
        What else is wrong with the source and costs no picture.
    """

    labels: Integers
    identities: Sequence[str]
    folders: Sequence[str]
    part: Integers
    problems: Sequence[str] = ()
    faults: Sequence[str] = ()


@dataclass(frozen=True)
class Built:
    """What one set has got.

    Attributes
    ----------
    images, identities : int
        How many.
    source : ndarray of int64
        Number, in the source, of the picture of each key from 1.
    labels : ndarray of int64
        Label in the set of each of these.
    side : int
        Width and height of the pictures, in pixels.
    """

    images: int
    identities: int
    source: Integers
    labels: Integers
    side: int


class Builder:
    """Appends pictures to the sets of a plan, and completes the sets.

    Parameters
    ----------
    stage : Staging
        The destination in the making.
    plan : Plan
        What goes where.
    remedy : str
        What to do about a broken picture, which stops the work; empty: broken ones are left out and listed, and
        faults are passed over.
    """

    def __init__(self, stage: Staging, plan: Plan, *, remedy: str) -> None:
        self._stage, self._plan, self._remedy = stage, plan, remedy
        self._labels, self._keys = _numbered(plan)
        if remedy and plan.problems:
            raise DataError(f"{plan.problems[0]}{more(len(plan.problems))}; {remedy}")
        self._files = [stage.appender(f"set/{folder}/{RECORDS}") for folder in plan.folders]
        self._entries = [stage.appender(f"{_ENTRIES}-{part}") for part in range(len(plan.folders))]
        self._broken = stage.appender(_HELD_BROKEN)
        if stage.done == 0:
            for file in self._files:
                file.write(header_record())
            self._broken.writelines(_line(problem) for problem in plan.problems)

    def run(self, one: Callable[[int], Prepared], what: str, reporter: Reporter) -> list[Built]:
        """Work through all pictures from the last checkpoint on and complete the sets.

        Parameters
        ----------
        one : callable
            Gives picture ``index`` as it is to be written; its DataError counts as a broken picture.
        what : str
            Named beside the bar.
        reporter : Reporter
            Shows how far it is.

        Raises
        ------
        DataError
            If a picture is broken and none may be left out, pictures differ in size, or a set stays empty.
        """
        for first, results in chunks(one, self._stage.done, len(self._plan.labels), what, reporter):
            for index, result in enumerate(results, first):
                self._append(index, result)
            self._stage.checkpoint(first + len(results))
        self._stage.checkpoint(len(self._plan.labels))
        built = [self._complete(part, folder) for part, folder in enumerate(self._plan.folders)]
        if listed := [*self.broken(), *self._plan.faults]:
            write_broken(self._stage.set / BROKEN, listed)
        return built

    def broken(self) -> list[str]:
        """Return what was left out so far, a text for each picture."""
        return [json.loads(line) for line in self._stage.content(_HELD_BROKEN).splitlines()]

    def _append(self, index: int, result: Prepared | DataError) -> None:
        if isinstance(result, DataError):
            if self._remedy:
                raise DataError(f"{result}; {self._remedy}") from result
            self._broken.write(_line(str(result)))
            return
        side = self._stage.notes.setdefault("side", result.side)
        if side != result.side:
            raise DataError(
                f"picture {index} of the source is {result.side}x{result.side}, those before it {side}x{side}; "
                "a set has one size: give --size"
            )
        part = int(self._plan.part[index])
        file = self._files[part]
        self._entries[part].write(struct.pack("<qq", index, file.tell()))
        file.write(framed(payload(result.data, label=int(self._labels[index]), key=int(self._keys[index]))))

    def _complete(self, part: int, folder: str) -> Built:
        entries = np.frombuffer(self._stage.content(f"{_ENTRIES}-{part}"), dtype=_ENTRY)
        if not len(entries):
            self._stage.forget()
            raise DataError(f"{folder}: not one picture is left for this set")
        source = entries["source"].astype(np.int64)
        labels, kept = dense(self._plan.labels[source])
        place = self._stage.set / folder
        side = int(self._stage.notes["side"])
        end = self._stage.length(f"set/{folder}/{RECORDS}")
        appended = Records(entries["offset"].astype(np.int64), self._labels[source], self._keys[source])
        complete(place, end, appended, labels, side)
        names = [self._plan.identities[label] for label in kept.tolist()]
        write_sidecar(place / IDENTITIES, names)
        order: npt.NDArray[np.intp] = np.argsort(labels, kind="stable")
        return Built(len(labels), len(kept), source[order], labels[order], side)


def _numbered(plan: Plan) -> tuple[Integers, Integers]:
    """Return each picture's label and key in its part, should none be broken."""
    labels, keys = np.zeros_like(plan.labels), np.zeros_like(plan.labels)
    for part in range(len(plan.folders)):
        own = np.flatnonzero(plan.part == part)
        labels[own], _ = dense(plan.labels[own])
        keys[own] = grouped_keys(labels[own])
    return labels, keys


def write_broken(path: Path, texts: Sequence[str]) -> None:
    """Write what was left out or passed over, a line each."""
    write_text(path, "".join(f"{printable(text)}\n" for text in texts))


def write_sidecar(path: Path, names: Sequence[str]) -> None:
    """Write identities' names by label, each on a line; what would break the line is escaped."""
    text = "".join(f"{label}\t{printable(name)}\n" for label, name in enumerate(names))
    write_text(path, text)


def _line(problem: str) -> bytes:
    return json.dumps(problem).encode() + b"\n"


def more(count: int) -> str:
    """Return what follows the first of so many faults."""
    return f" (and {count - 1} more)" if count > 1 else ""
