# SPDX-License-Identifier: Apache-2.0
"""Embeddings on disk by the content that they are of: files that are only ever added, each whole or not there.

A shard holds the embeddings of some pictures::

    8 bytes    magic, b"FFEMBED1"
    16 bytes   number of rows and of dimensions, uint64 little-endian
    16 * rows  keys
    4 * rows * dim   embeddings, float32 little-endian, in the order of the keys
    16 bytes   BLAKE2b of all that comes before

Each writer gives its shards names of their own, so that any number of processes may add to one folder at once. A shard
is checked as a whole when it is opened; one that is damaged is of no use to anybody: it is passed over, said to be, and
removed once what a call needed instead of it is written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from uuid import uuid4

import numpy as np

from fedface_flwr.evaluation.pictures import Embeddings
from fedface_flwr.files import replacing

KEY_BYTES = 16
SUFFIX = ".embeddings"
SHARD_ROWS = 8192
FLUSH_SECONDS = 120.0
"""What a process that is killed may lose."""

_MAGIC = b"FFEMBED1"
_HEAD = struct.Struct("<8sQQ")
_CHUNK = 1 << 24


class EmbeddingStore:
    """Embeddings of one backbone, by key.

    Parameters
    ----------
    folder : Path
        Where the shards lie; made when something is written, with access for its owner only, since embeddings tell
        people apart.
    dim : int
        Dimensions of an embedding.
    say : callable
        Takes a line for the user, about a damaged shard.
    """

    def __init__(self, folder: Path, dim: int, say: Callable[[str], None]) -> None:
        self._folder, self._dim, self._say = folder, dim, say
        self._shards: list[Embeddings] = []
        # Shard and row in one number: a large set has a million of these.
        self._places: dict[bytes, int] = {}
        self._new: dict[bytes, Embeddings] = {}
        self._seen: set[str] = set()
        self._damaged: list[Path] = []
        self._flushed = monotonic()
        self.refresh()

    def __len__(self) -> int:
        return len(self._places) + len(self._new)

    def get(self, key: bytes) -> Embeddings | None:
        """Return an embedding, float32 of shape (dim,), or None."""
        place = self._places.get(key)
        return self._new.get(key) if place is None else self._shards[place >> 32][place & 0xFFFFFFFF]

    def put(self, key: bytes, embedding: Embeddings) -> None:
        """Add an embedding; what makes a shard, or has waited for long, is written at once."""
        self._new[key] = embedding.copy()
        if len(self._new) >= SHARD_ROWS or monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet as one shard; on a disk that does not take it, say so and go on without."""
        self._flushed = monotonic()
        if not self._new:
            self._remove_damaged()
            return
        path = self._folder / f"{uuid4().hex}{SUFFIX}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(path, self._new, self._dim)
        except OSError as error:
            self._say(f"{self._folder}: embeddings cannot be kept ({error}); free some space or choose another --cache")
            self._new = {}
            return
        self._new = {}
        self._take(path)
        self._remove_damaged()

    def refresh(self) -> None:
        """Take up shards that other processes have written."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            if path.name not in self._seen:
                self._take(path)

    def _take(self, path: Path) -> None:
        self._seen.add(path.name)
        try:
            keys, embeddings = _open(path, self._dim)
        except FileNotFoundError:
            return  # damaged, and removed by another process meanwhile
        except OSError as error:
            self._say(f"{path}: cannot be read ({error}); its embeddings are computed again")
            return
        except ValueError as error:
            self._damaged.append(path)
            self._say(f"{path}: damaged ({error}); its embeddings are computed again, then it is removed")
            return
        shard = len(self._shards) << 32
        self._shards.append(embeddings)
        for row, at in enumerate(range(0, len(keys), KEY_BYTES)):
            self._places[keys[at : at + KEY_BYTES]] = shard + row

    def _remove_damaged(self) -> None:
        for path in self._damaged:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self._say(f"{path}: damaged, and cannot be removed ({error}); remove it")
        self._damaged.clear()


def _write(path: Path, rows: Mapping[bytes, Embeddings], dim: int) -> None:
    digest = blake2b(digest_size=KEY_BYTES)
    with replacing(path) as temporary, temporary.open("wb") as file:
        for part in (
            _HEAD.pack(_MAGIC, len(rows), dim),
            b"".join(rows),
            np.stack(list(rows.values())).astype("<f4").tobytes(),
        ):
            digest.update(part)
            file.write(part)
        file.write(digest.digest())


def _open(path: Path, dim: int) -> tuple[bytes, Embeddings]:
    """Map a shard; ValueError says what is wrong with it. Sizes are believed only if the file has them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise ValueError("it ends in its head")
        magic, count, columns = _HEAD.unpack(head)
        if magic != _MAGIC or columns != dim or size != _HEAD.size + count * (KEY_BYTES + 4 * dim) + KEY_BYTES:
            raise ValueError("its head does not fit its size")
        digest = blake2b(head, digest_size=KEY_BYTES)
        keys = file.read(count * KEY_BYTES)
        digest.update(keys)
        left = count * 4 * dim
        while left and (part := file.read(min(left, _CHUNK))):
            digest.update(part)
            left -= len(part)
        if file.read(KEY_BYTES) != digest.digest():
            raise ValueError("its checksum differs")
    if not count:
        return b"", np.empty((0, dim), dtype=np.float32)
    embeddings = np.memmap(path, dtype="<f4", mode="r", offset=_HEAD.size + len(keys), shape=(count, dim))
    return keys, embeddings.view(np.ndarray)
