# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from fedface_flwr.reporting.run_folder import RunFolder, replacing


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


def test_the_new_file_appears_only_when_the_block_is_over(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with replacing(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_keeps_the_old_file_and_leaves_no_rest(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
