# SPDX-License-Identifier: Apache-2.0
"""Flower's entry to the server: one run from its configuration to its folder."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from omegaconf import OmegaConf

from fedface_flwr.config import Config
from fedface_flwr.data.images import PREPROCESSING
from fedface_flwr.errors import FedFaceError, StateError
from fedface_flwr.federation.checkpoint import save_backbone
from fedface_flwr.federation.run_state import load_state
from fedface_flwr.files import locked, write_text
from fedface_flwr.reporting.comparison import write_comparison
from fedface_flwr.reporting.failed_start import clear_failed_start, has_run
from fedface_flwr.reporting.html import write_report
from fedface_flwr.reporting.metrics import last_validation, size_before, take_back
from fedface_flwr.reporting.outcome import merge_halves
from fedface_flwr.reporting.recorder import Recorder
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.summary import Summary, read_summary, write_summary
from fedface_flwr.run_config import config_of_run
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from strategies import STRATEGIES
from strategies.checkpoints import FileCheckpoints
from strategies.fedavg import GLOBAL
from strategies.outcome import summarise
from strategies.round_loop import Emit, RoundLoop

HALVES: tuple[Literal["first", "second"], ...] = ("first", "second")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured method on the federation behind ``grid``."""
    began = time.time()
    run = context.run_config
    config = config_of_run(str(run["config"]), str(run["overrides"]), context.run_id)
    folder = RunFolder(Path(config.run.dir).absolute())
    if not config.run.resume:
        _check_free(folder)
    try:
        with locked(folder.lock):
            if not config.run.resume:
                # Looked at once more, now that nobody else can write there.
                _check_free(folder)
                clear_failed_start(folder)
            if folder.summary.exists():
                raise StateError(f"{folder.path}: its run is finished")
            _main(grid, config, folder, config.run.launched or began)
            folder.lock.unlink(missing_ok=True)
    except BlockingIOError as error:
        raise StateError(f"{folder.path}: its run goes on in another process; end that first") from error


def _check_free(folder: RunFolder) -> None:
    if has_run(folder):
        raise StateError(f"{folder.path}: already holds a run; choose another run.dir or remove it")


def _main(grid: Grid, config: Config, folder: RunFolder, launched: float) -> None:
    parts = [RunFolder(folder.path / half) for half in HALVES] if config.data.fold_half == "both" else [folder]
    damaged: FedFaceError | None = None
    done = 0
    try:
        if config.run.resume:
            done = max(_take_back(folder, part).get("round", 0) for part in parts)
    except FedFaceError as error:
        damaged = error
    with Recorder(folder) as recorder:
        if config.run.resume:
            recorder.emit({"event": "resume", "round": done, "launched": config.run.launched})
        try:
            if damaged is not None:
                raise damaged
            summary = (_run_both if len(parts) > 1 else _run)(grid, config, folder, recorder.emit, launched)
        except BaseException as error:
            known = isinstance(error, FedFaceError)
            # Where the log itself is what cannot be written, Flower's own log has the reason.
            with suppress(StateError):
                recorder.emit(
                    {"event": "error", "message": str(error) if known else f"{type(error).__name__}: {error}"}
                )
            raise
        recorder.emit({"event": "end", "seconds": summary["seconds"]})


def _take_back(folder: RunFolder, part: RunFolder) -> dict[str, Any]:
    """Cut the event logs to what they were when this part of a run was saved last; return what was saved."""
    if part.summary.exists():
        return {}
    logs = [part] if part is folder else [part, folder]
    if not part.state.exists():
        for log in logs if part.metrics.exists() else ():
            # In the common log the other half's events may come before.
            take_back(log.metrics, 0 if log is part else size_before(log.metrics, part.path.name))
        return {}
    values = load_state(part.state)[1]
    sizes = values.get("log_bytes")
    if not isinstance(sizes, list) or len(sizes) != len(logs):
        raise StateError(f"{part.state}: is not of this run (log_bytes {sizes!r}); start the run anew")
    for log, size in zip(logs, sizes, strict=True):
        take_back(log.metrics, size)
    return values


def _run_both(grid: Grid, config: Config, folder: RunFolder, emit: Emit, launched: float) -> Summary:
    """Run the method once with each half of the folds, each in a folder of its own, and average their figures."""
    _write_config(folder, config)
    summaries: list[Summary] = []
    parts: list[Path] = []
    for half in HALVES:
        part = RunFolder(folder.path / half)
        own = replace(config, data=replace(config.data, fold_half=half), run=replace(config.run, dir=str(part.path)))
        parts.append(part.path)
        if part.summary.exists():
            summaries.append(read_summary(part.summary))
            continue
        with Recorder(part) as recorder:
            emit_both = partial(_emit_both, recorder.emit, emit, half)
            summaries.append(_run(grid, own, part, emit_both, launched, logs=(part, folder)))
            recorder.emit({"event": "end", "seconds": summaries[-1]["seconds"]})
        launched = time.time()
    merged = merge_halves(summaries)
    write_summary(folder.summary, merged)
    write_comparison(folder.report, parts)
    return merged


def _emit_both(own: Emit, common: Emit, half: str, event: dict[str, Any]) -> None:
    own(event)
    common({**event, "half": half})


def _run(
    grid: Grid,
    config: Config,
    folder: RunFolder,
    emit: Emit,
    launched: float,
    logs: Sequence[RunFolder] = (),
) -> Summary:
    """Run the method on one half of the folds, and fill the folder with all but the events."""
    _write_config(folder, config)
    model = FlatModel(build_backbone(config.model, config.seed))
    loop = STRATEGIES[config.strategy.name](config, config.data.fold_half, model.layout, model.state(), emit)
    loop.on_trained = partial(_save, folder)
    if config.run.resume and folder.state.exists():
        arrays, values = load_state(folder.state)
        if values.get("config") != config.digest():
            raise StateError(f"{folder.config}: has changed since the run was saved; restore it, or start anew")
        try:
            loop.restore(arrays, {**values, "validations_seen": last_validation(folder.metrics)})
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{folder.state}: is not of this run ({error!r}); start the run anew") from error
        # As if it had been launched so much earlier: the account is of both parts.
        launched -= values["elapsed"]
    began = launched
    loop.checkpoints = FileCheckpoints(
        folder.state,
        lambda: {
            "config": config.digest(),
            "elapsed": time.time() - began,
            "log_bytes": [log.metrics.stat().st_size for log in logs or (folder,)],
        },
    )
    loop.start(grid)
    summary = summarise(loop, launched=launched, ready=loop.ready, ended=time.time())
    write_summary(folder.summary, summary)
    write_report(folder.path)
    folder.state.unlink(missing_ok=True)
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
