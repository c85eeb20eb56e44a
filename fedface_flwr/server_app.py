# SPDX-License-Identifier: Apache-2.0
"""Flower's entry to the server: one run from its configuration to its folder."""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from omegaconf import OmegaConf

from fedface_flwr.compose import config_of_run
from fedface_flwr.config import Config
from fedface_flwr.data.images import PREPROCESSING
from fedface_flwr.errors import FedFaceError, StateError
from fedface_flwr.federation.checkpoint import save_backbone
from fedface_flwr.federation.layout import Layout
from fedface_flwr.files import write_text
from fedface_flwr.reporting.html import write_report
from fedface_flwr.reporting.outcome import merge_halves
from fedface_flwr.reporting.recorder import Recorder
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.summary import Summary, write_summary
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from strategies import STRATEGIES
from strategies.outcome import summarise
from strategies.round_loop import RoundLoop

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
    write_text(folder.config, OmegaConf.to_yaml(OmegaConf.create(config.to_json())))
    with Recorder(folder) as recorder:
        try:
            summary = _run(grid, config, folder, recorder, began)
        except BaseException as error:
            known = isinstance(error, FedFaceError)
            recorder.emit({"event": "error", "message": str(error) if known else f"{type(error).__name__}: {error}"})
            raise
        write_summary(folder.summary, summary)
        write_report(folder.path)
        recorder.emit({"event": "end", "seconds": summary["seconds"]})


def _run(grid: Grid, config: Config, folder: RunFolder, recorder: Recorder, began: float) -> Summary:
    """Run one half of the folds, or both one after the other and average their figures."""
    model = FlatModel(build_backbone(config.model, config.seed))
    halves = ("first", "second") if config.data.fold_half == "both" else (config.data.fold_half,)
    launched = config.run.launched or began
    summaries = []
    for half in halves:
        loop = STRATEGIES[config.strategy.name](config, half, model.layout, model.state(), recorder.emit)
        loop.start(grid)
        _save(loop, folder, model.layout, half if len(halves) > 1 else "")
        summaries.append(summarise(loop, launched=launched, ready=loop.ready, ended=time.time()))
        launched = time.time()
    return summaries[0] if len(summaries) == 1 else merge_halves(summaries)


def _save(loop: RoundLoop, folder: RunFolder, layout: Layout, half: str) -> None:
    for name, model in loop.models.items():
        path = folder.checkpoint_of("-".join(part for part in (half, name if name != "global" else "") if part))
        save_backbone(path, layout, model, _metadata(loop.config, loop.round))


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
