# SPDX-License-Identifier: Apache-2.0
"""One place to which a run's events go: the event log and TensorBoard."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from fedface_flwr.reporting.metrics import MetricsLog
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.tensorboard_sink import TensorBoardSink


class Recorder:
    """Writes events to all of a run folder's sinks, safely from several threads.

    Parameters
    ----------
    folder : RunFolder
        The run's folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._log = self._stack.enter_context(MetricsLog(folder.metrics))
        self._board = self._stack.enter_context(TensorBoardSink(folder.tensorboard))

    def emit(self, event: dict[str, Any]) -> None:
        """Record one event (see ``reporting.metrics`` for the kinds)."""
        with self._lock:
            self._board.write(self._log.write(event))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
