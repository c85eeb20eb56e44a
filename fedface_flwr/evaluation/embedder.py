# SPDX-License-Identifier: Apache-2.0
"""Embedding what protocols ask for: equal pictures once, decoded ahead of the backbone, kept on disk by content."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedface_flwr.data.sets import Images
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.embedder_store import KEY_BYTES, EmbeddingStore
from fedface_flwr.evaluation.pictures import Backbone, Embedded, Embeddings, Pictures

BATCH_SIZE = 64

# Decoding and reading leave Python's lock; the backbone needs the other cores.
_THREADS = min(4, os.cpu_count() or 1)
# Above this an array lies in an unnamed file that the system may move out of memory.
_LARGEST_IN_MEMORY = 1 << 30
_VARIANTS = ("plain", "mirrored")


def default_cache() -> Path:
    """Return the user's own folder of embeddings: ``$XDG_CACHE_HOME`` or ``~/.cache``, ``fedface/embeddings``."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "fedface" / "embeddings"


class CachingEmbedder:
    """An :class:`~fedface_flwr.evaluation.pictures.Embedder` that embeds no content twice.

    An embedding is found by the encoded picture's bytes, the pictures' recipe and, by the folder that it lies in, the
    backbone's digest and input size. Interrupted work is kept.

    Parameters
    ----------
    backbone : Backbone
        What embeds.
    cache : Path
        Folder of embeddings of all backbones.
    batch_size : int
        Pictures embedded at once.
    console : Console, optional
        Where progress is shown, if it is a terminal, and damaged files are named; standard error by default.
    """

    def __init__(
        self, backbone: Backbone, cache: Path, batch_size: int = BATCH_SIZE, console: Console | None = None
    ) -> None:
        self._backbone, self._batch_size = backbone, batch_size
        self._console = console or Console(stderr=True)
        # For its owner only: embeddings tell people apart.
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._scratch = cache
        own = f"{backbone.digest}\n{backbone.input_size}\n{backbone.dim}".encode()
        folder = cache / blake2b(own, digest_size=KEY_BYTES).hexdigest()
        self._stores = {variant: EmbeddingStore(folder / variant, backbone.dim, self._say) for variant in _VARIANTS}
        self.embedded = 0
        """Pictures and mirror images that the backbone has embedded, rather than found."""

    def __call__(self, pictures: Pictures, *, flip: bool, what: str) -> Embedded:
        """Return the embeddings in the pictures' order.

        Raises
        ------
        DataError
            If a picture cannot be read or decoded, or its embedding is not finite; it names the picture.
        """
        variants = _VARIANTS if flip else _VARIANTS[:1]
        arrays = {variant: self._array(len(pictures)) for variant in variants}
        for variant in variants:
            self._stores[variant].refresh()
        try:
            with self._progress() as progress, ThreadPoolExecutor(_THREADS) as pool:
                task = progress.add_task(f"embedding {what}", total=len(pictures))
                call = _Call(pictures, pool, lambda count: progress.advance(task, count), arrays)
                try:
                    self._embed(call)
                finally:
                    pool.shutdown(wait=True, cancel_futures=True)
        finally:
            for variant in variants:
                self._stores[variant].flush()
        return Embedded(arrays["plain"], arrays.get("mirrored"))

    def _embed(self, call: _Call) -> None:
        for index, (key, data, where) in enumerate(call.keyed(4 * self._batch_size)):
            if key in call.first:
                call.repeated.append((index, call.first[key]))
                continue
            call.first[key] = index
            missing = [variant for variant, array in call.arrays.items() if not self._found(variant, key, array[index])]
            if not missing:
                call.advance(1)
                continue
            pixels = call.pool.submit(call.pictures.pixels, data, index, self._backbone.input_size, where)
            call.waiting.append(_Waiting(index, key, where, missing, pixels))
            # One batch is embedded while the next is decoded.
            if len(call.waiting) >= 2 * self._batch_size:
                self._embed_batch(call)
        while call.waiting:
            self._embed_batch(call)
        for index, earlier in call.repeated:
            for array in call.arrays.values():
                array[index] = array[earlier]
        call.advance(len(call.repeated))

    def _found(self, variant: str, key: bytes, row: Embeddings) -> bool:
        cached = self._stores[variant].get(key)
        if cached is not None:
            row[:] = cached
        return cached is not None

    def _embed_batch(self, call: _Call) -> None:
        batch = [call.waiting.popleft() for _ in range(min(self._batch_size, len(call.waiting)))]
        pixels = np.stack([waiting.pixels.result() for waiting in batch])
        for variant, array in call.arrays.items():
            chosen = [place for place, waiting in enumerate(batch) if variant in waiting.missing]
            if not chosen:
                continue
            images = pixels[chosen]
            if variant == "mirrored":
                images = np.ascontiguousarray(images[..., ::-1])
            for place, embedding in zip(chosen, self._checked(images, [batch[at].where for at in chosen]), strict=True):
                array[batch[place].index] = embedding
                self._stores[variant].put(batch[place].key, embedding)
        call.advance(len(batch))

    def _checked(self, images: Images, where: list[str]) -> Embeddings:
        embeddings = self._backbone.embed(images)
        if embeddings.shape != (len(images), self._backbone.dim):
            expected = (len(images), self._backbone.dim)
            raise DataError(f"{self._backbone.title}: embeddings have shape {embeddings.shape} and not {expected}")
        finite = np.isfinite(embeddings).all(axis=1)
        if not finite.all():
            raise DataError(
                f"{where[int(np.argmin(finite))]}: {self._backbone.title} gives an embedding that is not finite; "
                "its weights are damaged, or the precision is too low for them"
            )
        self.embedded += len(images)
        return embeddings

    def _array(self, rows: int) -> Embeddings:
        shape = (rows, self._backbone.dim)
        if 4 * rows * self._backbone.dim <= _LARGEST_IN_MEMORY:
            return np.empty(shape, dtype=np.float32)
        with tempfile.TemporaryFile(dir=self._scratch) as file:
            return np.memmap(file, dtype=np.float32, mode="w+", shape=shape)

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        shown = self._console.is_terminal
        return Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True, disable=not shown)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class _Waiting:
    """A picture being decoded, and which variants of it are to be embedded."""

    index: int
    key: bytes
    where: str
    missing: list[str]
    pixels: Future[Images]


@dataclass(frozen=True)
class _Call:
    """What one call to the embedder works on."""

    pictures: Pictures
    pool: ThreadPoolExecutor
    advance: Callable[[int], None]
    arrays: dict[str, Embeddings]
    first: dict[bytes, int] = field(default_factory=dict)
    repeated: list[tuple[int, int]] = field(default_factory=list)
    waiting: deque[_Waiting] = field(default_factory=deque)

    def keyed(self, ahead: int) -> Iterator[tuple[bytes, bytes, str]]:
        """Yield key, encoded picture and name of each picture in order, reading no more than ``ahead`` ahead."""
        reading: deque[Future[tuple[bytes, bytes, str]]] = deque()
        for index in range(len(self.pictures)):
            reading.append(self.pool.submit(self._read, index))
            if len(reading) >= ahead:
                yield reading.popleft().result()
        while reading:
            yield reading.popleft().result()

    def _read(self, index: int) -> tuple[bytes, bytes, str]:
        data, where = self.pictures.read(index)
        recipe = self.pictures.recipe(index)
        digest = blake2b(len(recipe).to_bytes(8, "little") + recipe, digest_size=KEY_BYTES)
        digest.update(data)
        return digest.digest(), data, where
