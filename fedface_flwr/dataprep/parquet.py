# SPDX-License-Identifier: Apache-2.0
"""Hugging Face parquet files as a source: an image column of (bytes, path) and a label column."""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedface_flwr.dataprep.names import Identities
from fedface_flwr.dataprep.source import Integers, SourceOptions, file_stamp
from fedface_flwr.errors import ConfigError, DataError

_IMAGE_COLUMNS = ("image", "img", "jpg", "picture")
_LABEL_COLUMNS = ("label", "labels", "identity", "id", "cls", "class")
_BATCH = 256  # rows read from a file at a time
_BUFFER = 1 << 20  # bytes read from a column at a time; without it, a whole row group is


@dataclass
class ParquetSource:
    """Pictures in the rows of parquet files; a ``Source``.

    Attributes
    ----------
    files : list of Path
        The files, in order of their names.
    starts : list of int
        Number of each file's first row, over all files.
    rows : ndarray of int64, shape (n,)
        Number of each picture's row, over all files.
    """

    files: Sequence[Path]
    starts: list[int]
    rows: Integers
    image: str
    labels: Integers
    identities: Sequence[str]
    problems: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    kind: str = "parquet"

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._cursor: _Cursor | None = None

    @classmethod
    def open(cls, path: Path, options: SourceOptions) -> ParquetSource:
        """Open a file, or the files of a folder or of its ``data/``, and read the label column.

        Raises
        ------
        ConfigError
            If pyarrow is not installed.
        DataError
            If a file is damaged, or a column cannot be found or is not of a kind that can be used.
        """
        import numpy as np

        files = [path] if path.is_file() else parquet_files(path)
        identities, starts, problems, rows = Identities(), [], list[str](), list[Integers]()
        image, total = "", 0
        for file in files:
            with _opened(file) as opened:
                schema = opened.schema_arrow
                image = _column(file, schema, options.image, _IMAGE_COLUMNS, "--image-field")
                label = _column(file, schema, options.label, _LABEL_COLUMNS, "--label-field")
                names = _class_names(schema, label)
                _check_image_column(file, schema, image)
                _check_label_column(file, schema, label)
                _check_rows(file, opened)
                starts.append(total)
                kept = []
                for row, value in enumerate(_values(file, opened, label)):
                    name = _identity(value, names)
                    if name is None:
                        problems.append(f"{file}: row {row}: {value!r} in column {label} is no label")
                        continue
                    identities.append(name)
                    kept.append(row)
                rows.append(total + np.array(kept, dtype=np.int64))
                total += opened.metadata.num_rows
        labels, ordered = identities.numbered()
        if not len(labels):
            raise DataError(f"{path}: no rows with a label")
        return cls(files, starts, np.concatenate(rows), image, labels, ordered, problems)

    def stamp(self) -> Any:
        """Return the files' places, sizes and times of change, and the image column."""
        return [[file_stamp(path) for path in self.files], self.image]

    def key(self, index: int) -> str:
        """Return the row's file and its number in it."""
        file, row = self._place(index)
        return f"{self.files[file].name}:{row}"

    def read(self, index: int) -> tuple[bytes, str]:
        """Return the picture of one row. Rows are quickest in order; going back begins a file anew."""
        file, row = self._place(index)
        path = self.files[file]
        where = f"{path}: row {row}"
        with self._lock:
            cursor = self._cursor
            if cursor is None or cursor.path != path or not cursor.reaches(row):
                if cursor is not None:
                    cursor.close()
                self._cursor = cursor = _Cursor(path, self.image, row)
            value = cursor.value(row)
        data = value.get("bytes") if isinstance(value, dict) else value
        if data is None:
            raise DataError(f"{where}: the row holds no bytes, only a path or nothing; embed the files first")
        return bytes(data), where

    def _place(self, index: int) -> tuple[int, int]:
        row = int(self.rows[index])
        file = bisect_right(self.starts, row) - 1
        return file, row - self.starts[file]


class _Cursor:
    """Reads one file's pictures onwards, keeping the last two batches for threads that lag behind."""

    def __init__(self, path: Path, column: str, row: int) -> None:
        self.path = path
        self._file = _opened(path)
        groups = [self._file.metadata.row_group(at).num_rows for at in range(self._file.metadata.num_row_groups)]
        first, self._next = 0, 0
        while first < len(groups) - 1 and self._next + groups[first] <= row:
            self._next += groups[first]
            first += 1
        self._batches = _batches(path, self._file, column, list(range(first, len(groups))))
        self._kept: list[tuple[int, list[Any]]] = []

    def reaches(self, row: int) -> bool:
        return row >= (self._kept[0][0] if self._kept else self._next)

    def value(self, row: int) -> Any:
        while row >= self._next:
            try:
                batch = next(self._batches)
            except StopIteration as error:
                raise DataError(f"{self.path}: row {row}: the file ends before it") from error
            self._kept = [*self._kept[-1:], (self._next, batch)]
            self._next += len(batch)
        start, batch = next(kept for kept in reversed(self._kept) if kept[0] <= row)
        return batch[row - start]

    def close(self) -> None:
        self._file.close()


def parquet_files(folder: Path) -> list[Path]:
    """Return the parquet files of a folder, or of the ``data/`` in it, sorted by name."""
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))


def _opened(path: Path) -> Any:
    try:
        import pyarrow.lib
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"{path}: reading parquet needs pyarrow; install fedface-flwr[tools]") from error
    try:
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
    except (pyarrow.lib.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable parquet file ({_short(error)})") from error


def _batches(path: Path, file: Any, column: str, groups: list[int]) -> Iterator[list[Any]]:
    import pyarrow.lib

    batches = file.iter_batches(batch_size=_BATCH, row_groups=groups, columns=[column], use_threads=False)
    while True:
        try:
            batch = next(batches, None)
            if batch is None:
                return
            values = batch.column(0).to_pylist()
        except (pyarrow.lib.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{path}: column {column} cannot be read ({_short(error)})") from error
        yield values


def _values(path: Path, file: Any, column: str) -> Iterator[Any]:
    for batch in _batches(path, file, column, list(range(file.metadata.num_row_groups))):
        yield from batch


def _column(path: Path, schema: Any, wanted: str, usual: tuple[str, ...], option: str) -> str:
    found = [name for name in ((wanted,) if wanted else usual) if name in schema.names]
    if not found:
        raise DataError(
            f"{path}: no column {wanted or ' or '.join(usual)}; it has {', '.join(schema.names)}: choose with {option}"
        )
    return found[0]


def _check_image_column(path: Path, schema: Any, column: str) -> None:
    import pyarrow.types as types

    kind = schema.field(column).type
    fields = [kind.field(at) for at in range(kind.num_fields)] if types.is_struct(kind) else []
    held = next((field.type for field in fields if field.name == "bytes"), kind)
    if not (types.is_binary(held) or types.is_large_binary(held)):
        raise DataError(f"{path}: column {column} is {kind}; pictures are struct<bytes, path> or binary")


def _check_label_column(path: Path, schema: Any, column: str) -> None:
    import pyarrow.types as types

    kind = schema.field(column).type
    held = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_integer(held) or types.is_string(held) or types.is_large_string(held)):
        raise DataError(f"{path}: column {column} is {kind}; labels are whole numbers or texts")


def _check_rows(path: Path, file: Any) -> None:
    """Refuse more rows than there can be pictures, since a few bytes can stand for any number of equal labels."""
    rows, size = file.metadata.num_rows, path.stat().st_size
    counted = sum(file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups))
    if rows != counted or not 0 <= rows <= size:
        raise DataError(f"{path}: damaged: it announces {rows} rows, has {counted} in its groups and {size} bytes")


def _class_names(schema: Any, label: str) -> list[str] | None:
    """Return the names of a ClassLabel, which Hugging Face keeps in the schema's metadata."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _identity(value: Any, names: list[str] | None) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if isinstance(value, int) and names is not None:
        return names[value] if 0 <= value < len(names) else None
    return str(value) or None


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
