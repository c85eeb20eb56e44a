# SPDX-License-Identifier: Apache-2.0
"""The event log's figures as TensorBoard scalars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from torch.utils.tensorboard import SummaryWriter

from fedface_flwr.reporting.metrics import Event

Scalar = tuple[str, float | None, int]


class TensorBoardSink:
    """Writes each event's figures to TensorBoard.

    Tags: ``loss/<silo>``, ``loss_ema/<silo>``, ``accuracy/<silo>`` and ``weights/<silo>`` by training round;
    ``validation/<validator>/best`` (score of the chosen candidate) and ``/mean`` (over candidates) by
    validation round; ``test/<pack>/accuracy`` at the last training round, with
    ``/<silo>`` after it for a silo's own model.

    Parameters
    ----------
    folder
        Where the event files go; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder))
        self._last_round = 0

    def write(self, event: Event) -> None:
        """Write the figures of `event`; events without figures, and figures that are None, leave no trace."""
        if event["event"] == "round":
            self._last_round = event["round"]
        for tag, value, step in _scalars(event, self._last_round):
            if value is not None:
                self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Flush and close the event file; idempotent."""
        self._writer.close()

    def __enter__(self) -> TensorBoardSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _scalars(event: Event, last_round: int) -> Iterator[Scalar]:
    if event["event"] == "round":
        for silo, figures in event["silos"].items():
            for name in ("loss", "loss_ema", "accuracy"):
                yield f"{name}/{silo}", figures[name], event["round"]
        for silo, weight in event["weights"].items():
            yield f"weights/{silo}", weight, event["round"]
    elif event["event"] == "validation":
        for validator, scores in event["scores"].items():
            finite = [score for score in scores if score is not None]
            yield f"validation/{validator}/best", scores[event["best"]], event["validation"]
            if finite:
                yield f"validation/{validator}/mean", sum(finite) / len(finite), event["validation"]
    elif event["event"] == "test":
        model = "" if event["model"] == "global" else f"/{event['model']}"
        yield f"test/{event['pack']}/accuracy{model}", event["accuracy"], last_round
