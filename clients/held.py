# SPDX-License-Identifier: Apache-2.0
"""The model that a party holds, a trainer the global one, a validator the anchor: others reach it as differences."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from fedface_flwr.federation.difference import FullModel, GlobalChange, decode, momentum_of
from fedface_flwr.federation.layout import ModelState, Vector
from fedface_flwr.training.store import SiloStore


class HeldModel:
    """One party's copy of the latest model that was sent for keeping, in memory and in its store.

    Parameters
    ----------
    store : SiloStore
        Where the copy outlives the process.
    """

    def __init__(self, store: SiloStore) -> None:
        self._store = store
        self._version = ""
        self._model: ModelState | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="held-model")
        self._writing: Future[None] | None = None

    def receive(self, download: FullModel | GlobalChange) -> tuple[ModelState, Vector | None] | None:
        """Return the model and the momentum that a message brings, or None if this party does not hold its base.

        The model is written to the store meanwhile; :meth:`settle`, or the next call, waits for that.

        Raises
        ------
        StateError
            If the disk did not take the last one.
        """
        self.settle()
        if isinstance(download, FullModel):
            # The message's arrays end with it.
            self._model = ModelState(download.model.values.copy(), download.model.counters.copy())
            momentum = download.momentum
        elif self._holds(download.version):
            # The message again, as after a lost reply.
            momentum = momentum_of(decode(download.difference), download.rate) if download.rate else None
        elif self._holds(download.base):
            assert self._model is not None
            momentum = download.apply(self._model)
        else:
            return None
        assert self._model is not None
        if download.version != self._version:
            self._version = download.version
            self._writing = self._pool.submit(self._store.save_global, self._version, self._model)
        return self._model, momentum

    def find(self, version: str) -> ModelState | None:
        """Return the model of that version, or None if this party does not hold it."""
        return self._model if self._holds(version) else None

    def _holds(self, version: str) -> bool:
        if self._version != version and (stored := self._store.load_global(version)) is not None:
            self._version, self._model = version, stored
        return self._version == version

    def settle(self) -> None:
        """Wait until the store holds what memory holds.

        Raises
        ------
        StateError
            If the disk does not take it.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
