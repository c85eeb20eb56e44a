# SPDX-License-Identifier: Apache-2.0
"""Reading a run's event log while it is being written."""

from __future__ import annotations

from pathlib import Path

from fedface_flwr.reporting.metrics import Event, parse_event


class MetricsTail:
    """Returns each event of a growing log once.

    Parameters
    ----------
    path : Path
        The log, which need not exist yet.
    since : float
        Of a resumed run, when it was launched again: earlier events, some of which it takes back, are passed over.
    """

    def __init__(self, path: Path, since: float = 0.0) -> None:
        self.path, self._offset, self._since = path, 0, since

    def new_events(self) -> list[Event]:
        """Return the events whose lines have been completed since the last call; DataError if one is no event."""
        events = self._completed()
        if not self._since:
            return events
        starts = [i for i, e in enumerate(events) if e["event"] == "resume" and e.get("launched") == self._since]
        if not starts:
            self._offset = 0
            return []
        self._since = 0.0
        return events[starts[0] :]

    def _completed(self) -> list[Event]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [parse_event(line, str(self.path)) for line in whole.splitlines()]
