# SPDX-License-Identifier: Apache-2.0
"""Opens a source of faces by what the path looks like, or as the command line says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedface_flwr.data.recordio import INDEX, RECORDS
from fedface_flwr.dataprep.folders import FolderSource
from fedface_flwr.dataprep.lists import ListSource, lines
from fedface_flwr.dataprep.packs import PackSource
from fedface_flwr.dataprep.parquet import ParquetSource, parquet_files
from fedface_flwr.dataprep.records import RecordIOSource
from fedface_flwr.dataprep.source import Source, SourceOptions
from fedface_flwr.dataprep.tfrecord_source import SUFFIXES, TFRecordSource
from fedface_flwr.errors import DataError

_OPENERS: dict[str, Callable[[Path, SourceOptions], Source]] = {
    "recordio": lambda path, options: RecordIOSource.open(path),
    "folder": lambda path, options: FolderSource.open(path),
    "pack": lambda path, options: PackSource.open(path),
    "tfrecord": TFRecordSource.open,
    "list": lambda path, options: ListSource.open(path, options.root),
    "parquet": ParquetSource.open,
}
FORMATS = tuple(_OPENERS)


def open_source(path: Path, options: SourceOptions) -> Source:
    """Open a source without reading a picture.

    Raises
    ------
    DataError
        If nothing is there, or it is damaged as a whole.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    return _OPENERS[options.format or told_format(path)](path, options)


def told_format(path: Path) -> str:
    """Return the format of a file or folder, told by names and, of a list, by its first line."""
    if path.is_dir():
        if (path / RECORDS).exists() or (path / INDEX).exists():
            return "recordio"
        if any(entry.name.endswith((*SUFFIXES, ".index")) for entry in path.iterdir()):
            return "tfrecord"
        return "parquet" if parquet_files(path) else "folder"
    if path.suffix in (".bin", ".parquet"):
        return path.suffix[1:].replace("bin", "pack")
    if path.name.endswith((*SUFFIXES, ".index")):
        return "tfrecord"
    if path.name == RECORDS:
        raise DataError(f"{path}: a RecordIO set is named by its folder, {path.parent}")
    first = next(lines(path), (0, ""))[1]
    return "tfrecord" if path.suffix != ".lst" and first.count("\t") == 3 else "list"
