# SPDX-License-Identifier: Apache-2.0
"""The event log of a run: ``metrics.jsonl``, one JSON object a line.

Every event has ``event`` (its kind) and ``time`` (seconds since the run began, added by the log; a resumed
run goes on from its last event's time). Losses are in nats, accuracies and TAR in 0..1, scores in percent,
times in seconds. A number that is not finite is written as null.

``start``
    ``method``, ``seed``, ``rounds``, ``steps_per_round``, ``trainers`` [names], ``validators`` [names;
    empty without Federated Validation].
``round``: one training round, when it is over
    ``round`` (from 1), ``rate``, ``silos`` {name: {``loss``, ``accuracy`` (margin-free), ``loss_ema``,
    ``seconds``, ``bytes_down``, ``bytes_up``}}, ``weights`` {name: w; empty where nothing is averaged},
    ``seconds`` {``training``, ``aggregation``, ``other``}, ``missing`` [names], ``rejected`` [names of those whose
    reply could not be taken], ``bytes`` {``down``, ``up``: {array: bytes of all trainers}}.
``validation``: one round of Federated Validation, when it is over
    ``validation`` (from 1), ``round`` (the training round whose local models were scored),
    ``training_round`` (the round in progress when it was over, 0 between rounds),
    ``candidates`` [[w of each trainer], ...],
    ``scores`` {validator: [percent of each candidate]}, ``normalised`` {validator: [...]}, ``best`` (index
    from 0 into ``candidates``; candidate 0 is the w of that moment), ``weights`` {name: w after the update},
    ``seconds``, ``bytes_down``, ``bytes_up``.
``test``
    ``model`` ("global", or a silo's name where each silo has its own), ``pack``, ``accuracy``,
    ``accuracy_std``, ``tar_at_far_1e-3``, ``tar_at_far_1e-4``, ``auc``, ``pairs``, ``seconds``.
``warning``
    ``message``.
``resume``: an interrupted run goes on
    ``round`` (the last one that counts), ``launched`` (when, in seconds since the epoch).
``error``: the last event of a run that failed
    ``message``.
``end``
    ``seconds``.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fedface_flwr.errors import DataError, StateError
from fedface_flwr.files import replacing

Event = dict[str, Any]


class MetricsLog:
    """Appends events to a file, safely from several threads.

    Parameters
    ----------
    path
        The file; made with its folder if missing, continued (less a torn last line) if there.

    Raises
    ------
    DataError
        The file exists and is not an event log.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = _mend(path)
        self._lock = threading.Lock()
        self._began = time.monotonic() - (earlier[-1]["time"] if earlier else 0.0)
        self._file = path.open("a", encoding="ascii")

    def write(self, event: Mapping[str, Any]) -> Event:
        """Append `event` with its time, flushed, and return what a reader of the file will get.

        Raises
        ------
        StateError
            If the disk does not take it.
        """
        with self._lock:
            record = _plain({**event, "time": round(time.monotonic() - self._began, 3)})
            try:
                self._file.write(json.dumps(record, allow_nan=False) + "\n")
                self._file.flush()
            except OSError as error:
                raise StateError(
                    f"{self._file.name}: cannot be written ({error}); free some space and resume the run"
                ) from error
        return dict(record)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(path: Path) -> list[Event]:
    """Read an event log.

    A last line that a crash cut short is left out.

    Raises
    ------
    DataError
        No such file, or any other line is not an event.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such event log; is this the folder of a run that has started?") from error
    events = [parse_event(line, f"{path}, line {number}") for number, line in enumerate(lines[:-1], start=1)]
    if _is_json(lines[-1]):
        events.append(parse_event(lines[-1], f"{path}, line {len(lines)}"))
    return events


def take_back(path: Path, size: int) -> list[Event]:
    """Cut an event log to its first ``size`` bytes, as it was when a run was saved, and return the events cut off.

    They are kept in ``metrics.lost.jsonl`` beside it.
    """
    if not path.exists():
        return []
    events, content = read_metrics(path), path.read_bytes()
    kept = content[:size].count(b"\n")
    with _lost(path).open("ab") as file:
        file.write(b"".join(line + b"\n" for line in content[size:].split(b"\n") if _is_json(line)))
    with replacing(path) as temporary:
        temporary.write_bytes(content[:size])
    return events[kept:]


def size_before(path: Path, half: str) -> int:
    """Return how many bytes of a log that both halves of a run share come before the first event of one."""
    events = read_metrics(path) if path.exists() else []
    before = next((i for i, event in enumerate(events) if event.get("half") == half), len(events))
    return sum(len(line) + 1 for line in path.read_bytes().split(b"\n")[:before]) if before else 0


def last_validation(path: Path) -> int:
    """Return the highest number of a validation round in a log and in what was taken back from it."""
    logs = [log for log in (path, _lost(path)) if log.exists()]
    return max((e["validation"] for log in logs for e in read_metrics(log) if e["event"] == "validation"), default=0)


def _lost(path: Path) -> Path:
    return path.with_name("metrics.lost.jsonl")


def _mend(path: Path) -> list[Event]:
    """Make an existing log end with a whole line, so that appending cannot spoil it; return its events."""
    if not path.exists():
        return []
    events = read_metrics(path)
    content = path.read_bytes()
    last = content.rpartition(b"\n")[2]
    if last:
        with path.open("r+b") as file:
            if _is_json(last):
                file.seek(0, 2)
                file.write(b"\n")
            else:
                file.truncate(len(content) - len(last))
    return events


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def parse_event(line: bytes, where: str) -> Event:
    """Read one line of a log; DataError, which says ``where``, if it is no event."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); the log was edited or its disk is damaged") from error
    if not (isinstance(record, dict) and isinstance(record.get("event"), str) and "time" in record):
        raise DataError(f"{where}: not an event (an object with 'event' and 'time')")
    return record


def _plain(value: Any) -> Any:
    """Turn `value` into what JSON can hold: arrays to lists, numpy scalars to Python's, NaN to None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
