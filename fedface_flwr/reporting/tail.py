# SPDX-License-Identifier: Apache-2.0
"""Reading a run's event log while it is being written."""

from __future__ import annotations

import json
from pathlib import Path

from fedface_flwr.reporting.metrics import Event


class MetricsTail:
    """Returns each event of a growing log once.

    Parameters
    ----------
    path : Path
        The log, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0

    def new_events(self) -> list[Event]:
        """Return the events whose lines have been completed since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
