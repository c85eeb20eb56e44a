# SPDX-License-Identifier: Apache-2.0
"""The one place that names the files of a run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """The files of one run.

    Parameters
    ----------
    path
        The run's folder; need not exist yet.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The composed configuration, YAML."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """The event log, one JSON object a line (see `reporting.metrics`)."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """The run in figures, JSON (see `reporting.summary`)."""
        return self.path / "summary.json"

    @property
    def checkpoint(self) -> Path:
        """The global model."""
        return self.checkpoint_of("")

    def checkpoint_of(self, name: str) -> Path:
        """Return the file of one of several models: a silo's own, or that of one half of the folds."""
        return self.path / f"checkpoint{name and '-'}{name}.safetensors"

    @property
    def state(self) -> Path:
        """What an interrupted run goes on from; removed when the run is over."""
        return self.path / "state.safetensors"

    @property
    def lock(self) -> Path:
        """Held by the one process that runs this folder's run."""
        return self.path / "run.lock"

    @property
    def launch_lock(self) -> Path:
        """Held by the one command that launched this folder's run, while it shows it."""
        return self.path / "launch.lock"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def report(self) -> Path:
        """The self-contained HTML report."""
        return self.path / "report.html"

    def plot(self, name: str) -> Path:
        """Return the PNG file of the plot `name`: loss, accuracy or weights."""
        return self.path / "plots" / f"{name}.png"
