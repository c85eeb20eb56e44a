# SPDX-License-Identifier: Apache-2.0
"""Flower's entry to the server: one run from its configuration to its folder."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from omegaconf import OmegaConf

from fedface_flwr.compose import config_of_run
from fedface_flwr.config import Config
from fedface_flwr.data.images import PREPROCESSING
from fedface_flwr.errors import FedFaceError, StateError
from fedface_flwr.federation.checkpoint import save_backbone
from fedface_flwr.files import write_text
from fedface_flwr.reporting.comparison import write_comparison
from fedface_flwr.reporting.html import write_report
from fedface_flwr.reporting.outcome import merge_halves
from fedface_flwr.reporting.recorder import Recorder
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.summary import Summary, write_summary
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from strategies import STRATEGIES
from strategies.fedavg import GLOBAL
from strategies.outcome import summarise
from strategies.round_loop import Emit, RoundLoop

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured method on the federation behind ``grid``."""
    began = time.time()
    run = context.run_config
    config = config_of_run(str(run["config"]), str(run["overrides"]), context.run_id)
    folder = RunFolder(Path(config.run.dir).absolute())
    if folder.metrics.exists():
        raise StateError(f"{folder.path}: already holds a run; choose another run.dir or remove it")
    run_it = _run_both if config.data.fold_half == "both" else _run
    with Recorder(folder) as recorder:
        try:
            summary = run_it(grid, config, folder, recorder.emit, config.run.launched or began)
        except BaseException as error:
            known = isinstance(error, FedFaceError)
            recorder.emit({"event": "error", "message": str(error) if known else f"{type(error).__name__}: {error}"})
            raise
        recorder.emit({"event": "end", "seconds": summary["seconds"]})


def _run_both(grid: Grid, config: Config, folder: RunFolder, emit: Emit, launched: float) -> Summary:
    """Run the method once with each half of the folds, each in a folder of its own, and average their figures."""
    _write_config(folder, config)
    summaries, parts = [], []
    for half in ("first", "second"):
        part = RunFolder(folder.path / half)
        own = replace(config, data=replace(config.data, fold_half=half), run=replace(config.run, dir=str(part.path)))
        with Recorder(part) as recorder:
            emit_both = partial(_emit_both, recorder.emit, emit, half)
            summaries.append(_run(grid, own, part, emit_both, launched))
            recorder.emit({"event": "end", "seconds": summaries[-1]["seconds"]})
        parts.append(part.path)
        launched = time.time()
    merged = merge_halves(summaries)
    write_summary(folder.summary, merged)
    write_comparison(folder.report, parts)
    return merged


def _emit_both(own: Emit, common: Emit, half: str, event: dict[str, Any]) -> None:
    own(event)
    common({**event, "half": half})


def _run(grid: Grid, config: Config, folder: RunFolder, emit: Emit, launched: float) -> Summary:
    """Run the method on one half of the folds, and fill the folder with all but the events."""
    _write_config(folder, config)
    model = FlatModel(build_backbone(config.model, config.seed))
    loop = STRATEGIES[config.strategy.name](config, config.data.fold_half, model.layout, model.state(), emit)
    loop.on_trained = partial(_save, folder)
    loop.start(grid)
    summary = summarise(loop, launched=launched, ready=loop.ready, ended=time.time())
    write_summary(folder.summary, summary)
    write_report(folder.path)
    return summary


def _save(folder: RunFolder, loop: RoundLoop) -> None:
    for name, model in loop.models.items():
        path = folder.checkpoint_of("" if name == GLOBAL else name)
        save_backbone(path, loop.layout, model, _metadata(loop.config, loop.round))


def _write_config(folder: RunFolder, config: Config) -> None:
    write_text(folder.config, OmegaConf.to_yaml(OmegaConf.create(json.loads(config.to_json()))))


def _metadata(config: Config, rounds: int) -> dict[str, str]:
    model = config.model
    return {
        "architecture": f"IR-{model.depth}",
        "width": str(model.width),
        "input_size": str(model.input_size),
        "embedding": str(model.embedding),
        **PREPROCESSING.metadata(),
        "method": config.strategy.name,
        "rounds": str(rounds),
        "seed": str(config.seed),
    }
