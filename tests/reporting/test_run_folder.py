# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from fedface_flwr.reporting.run_folder import RunFolder


def test_the_folder_is_laid_out_as_documented():
    folder = RunFolder(Path("run"))
    files = [
        folder.config,
        folder.metrics,
        folder.summary,
        folder.checkpoint,
        folder.tensorboard,
        folder.report,
    ]
    assert [str(path) for path in [*files, folder.plot("loss")]] == [
        "run/config.yaml",
        "run/metrics.jsonl",
        "run/summary.json",
        "run/checkpoint.safetensors",
        "run/tensorboard",
        "run/report.html",
        "run/plots/loss.png",
    ]
