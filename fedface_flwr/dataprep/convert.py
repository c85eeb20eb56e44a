# SPDX-License-Identifier: Apache-2.0
"""From any source to a RecordIO set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedface_flwr.dataprep.building import Builder, Plan, more
from fedface_flwr.dataprep.pictures import Encoding, Prepared, prepare
from fedface_flwr.dataprep.record_faults import size_faults
from fedface_flwr.dataprep.records import RecordIOSource
from fedface_flwr.dataprep.source import Source
from fedface_flwr.dataprep.staging import made_of, staging, write_origin
from fedface_flwr.errors import DataError
from fedface_flwr.reporting.bars import Reporter
from fedface_flwr.wording import numbered

_REMEDY = "--skip-broken leaves such pictures out"


@dataclass(frozen=True)
class Converted:
    """What a conversion made.

    Attributes
    ----------
    images, identities, side : int
        How many, and the pictures' side in pixels.
    broken : int
        Pictures that were left out: broken ones and those that are not square.
    faults : int
        What else is wrong with the source and was passed over.
    new : bool
        False where an earlier call had made the same already.
    """

    images: int
    identities: int
    side: int
    broken: int
    faults: int = 0
    new: bool = True


def convert(source: Source, dest: Path, encoding: Encoding, *, skip_broken: bool, reporter: Reporter) -> Converted:
    """Write a source as ``train.rec``, ``train.idx``, ``property`` and ``identities.txt`` below ``dest``.

    A call that was interrupted is gone on with by the same call; a finished one is not done again.

    Raises
    ------
    DataError
        If ``dest`` is taken, the source is a verification pack, or a picture is broken, or anything
        else wrong with the source, and ``skip_broken`` is off.
    StateError
        If another process is at it.
    """
    require_identities(source)
    request = request_of("convert", source, encoding=asdict(encoding), skip_broken=skip_broken)
    if (origin := made_of(dest, request)) is not None:
        return Converted(**origin["result"], new=False)
    faults = faults_of(source)
    if not skip_broken:
        require_faultless(source, faults)
    plan = Plan(source.labels, source.identities, ["."], np.zeros_like(source.labels), source.problems, faults)
    with staging(dest, request) as stage:
        if stage.done:
            reporter.note(f"{dest}: going on after {numbered(stage.done, 'picture')}")
        builder = Builder(stage, plan, remedy="" if skip_broken else _REMEDY)
        (built,) = builder.run(lambda index: picture(source, index, encoding), "converting", reporter)
        result = Converted(built.images, built.identities, built.side, len(builder.broken()), len(plan.faults))
        write_origin(stage.set, request, _fields(result))
    return result


def picture(source: Source, index: int, encoding: Encoding) -> Prepared:
    """Return picture ``index`` of a source as it goes into a set; DataError if it is broken."""
    return prepare(*source.read(index), encoding)


def request_of(command: str, source: Source, **options: Any) -> dict[str, Any]:
    """Return what decides a command's result: its source and options, in JSON's types."""
    return {"command": command, "kind": source.kind, "source": source.stamp(), **options}


def require_identities(source: Source) -> None:
    """Raise DataError for a verification pack, whose labels are no identities."""
    if source.kind == "pack":
        raise DataError("a verification pack has pairs, not identities; it cannot become a training set")


def faults_of(source: Source) -> list[str]:
    """Return what is wrong with a source beside its pictures, and with the size that a RecordIO set declares.

    That size is compared with the first picture that is whole. Pictures that differ in size are met on the way.
    """
    faults = list(source.faults)
    if isinstance(source, RecordIOSource):
        for index in range(len(source.labels)):
            try:
                data, where = source.read(index)
                side = prepare(data, where, Encoding()).side
            except DataError:
                continue
            faults += size_faults(source.faces.folder, {side: where})
            break
    return faults


def require_faultless(source: Source, faults: list[str]) -> None:
    """Raise DataError if anything but pictures is wrong with a source."""
    if faults:
        # A folder's files are put right by hand, and each text says how; records are not.
        remedy = "; convert --skip-broken passes over this, as it costs no picture" if source.kind == "recordio" else ""
        raise DataError(f"{faults[0]}{more(len(faults))}{remedy}")


def _fields(result: Converted) -> Mapping[str, Any]:
    return {key: value for key, value in asdict(result).items() if key != "new"}
