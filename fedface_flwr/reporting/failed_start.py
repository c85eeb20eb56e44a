# SPDX-License-Identifier: Apache-2.0
"""What a run that ended before its first round leaves: nothing to go on from, so its folder may be taken again."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedface_flwr.errors import DataError
from fedface_flwr.reporting.metrics import read_metrics
from fedface_flwr.reporting.run_folder import RunFolder

# Of a run in both halves of the folds, each has a folder of its own.
_PARTS = ("", "first", "second")


def has_run(folder: RunFolder) -> bool:
    """Return whether a run's folder holds anything that a person could want, or that a run could go on from.

    That is a round in an event log, an event log that cannot be read, or any model, state, summary or report.
    """
    return any(_has_run(RunFolder(folder.path / part)) for part in _PARTS)


def clear_failed_start(folder: RunFolder) -> None:
    """Remove the records of a run that ended before its first round; Flower's log, and all that is not ours, stays.

    Call it only where ``has_run`` says no and no other process works in the folder, whose lock may be the caller's.
    """
    for part in (RunFolder(folder.path / name) for name in _PARTS):
        # Without an event log no run of ours has written here.
        if not part.metrics.exists():
            continue
        for path in (part.config, part.metrics):
            path.unlink(missing_ok=True)
        shutil.rmtree(part.tensorboard, ignore_errors=True)


def _has_run(folder: RunFolder) -> bool:
    if any(path.exists() for path in (folder.summary, folder.report, *_models(folder.path))):
        return True
    try:
        return folder.metrics.exists() and any(event["event"] == "round" for event in read_metrics(folder.metrics))
    except DataError:
        return True


def _models(path: Path) -> list[Path]:
    """Return the models and states of a run, and what its silos keep of theirs."""
    return [*path.glob("*.safetensors"), *(path / "silos").rglob("*.safetensors")]
