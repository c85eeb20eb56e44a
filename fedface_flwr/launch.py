# SPDX-License-Identifier: Apache-2.0
"""``fedface``: Hydra's entry, which composes a run, starts Flower for it, shows its progress and ends Flower again."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from yaml import YAMLError  # type: ignore[import-untyped]

from fedface_flwr.compose import CONF, LAUNCH_KEYS, quoted, validate
from fedface_flwr.config import Config, DataConfig, from_container
from fedface_flwr.deployment import Deployment
from fedface_flwr.errors import ConfigError, FedFaceError
from fedface_flwr.files import locked
from fedface_flwr.reporting.failed_start import clear_failed_start, has_run
from fedface_flwr.reporting.metrics import read_metrics
from fedface_flwr.reporting.progress import describe
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.tail import MetricsTail
from fedface_flwr.run_processes import simulated_in
from fedface_flwr.simulation import Simulation
from fedface_flwr.stopping import Ended, HeardConsole, end_by_exception, leave_output
from fedface_flwr.wording import numbered

# How long nothing may be heard of a run before Flower itself is asked; its command line costs a second of a core.
QUIET = 20.0


def absolute_paths(config: DictConfig, folder: Path, base: Path) -> dict[str, str | float]:
    """Return the keys that a run needs changed: its folder, and paths that would mean another place to Flower."""
    changes: dict[str, str | float] = {
        "run.dir": str(folder),
        "run.launched": time.time(),
        "run.token": secrets.token_hex(8),
    }
    defaults = {"root": "", "cache": ".fedface/cache"}
    for key, default in defaults.items():
        value = "" if OmegaConf.is_missing(config.data, key) else config.data[key]
        # What is no text is refused when the configuration is validated.
        if isinstance(value, str) and (value or default) and not OmegaConf.is_missing(config.data, key):
            changes[f"data.{key}"] = str(base / (value or default))
    return changes


def follow(flower: Simulation | Deployment, config: Config, console: Console) -> None:
    """Show the run's events until it ends.

    Raises
    ------
    FedFaceError
        If the run fails, with its reason.
    """
    tail = MetricsTail(RunFolder(Path(config.run.dir)).metrics, since=config.run.launched if config.run.resume else 0)
    flower.submit()
    heard = time.monotonic()
    while True:
        for event in tail.new_events():
            heard = time.monotonic()
            if event["event"] == "error":
                raise FedFaceError(event["message"])
            line = describe(event, config.training.rounds)
            if line:
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            if event["event"] == "end":
                return
        if time.monotonic() - heard > QUIET:
            heard = time.monotonic()
            if flower.check() and not tail.path.exists():
                raise FedFaceError(f"{config.run.dir}: the run is over, but its event log is gone")
        time.sleep(0.2)


def run(config: Config, console: Console) -> None:
    """Run one configuration, in Flower's simulation or on a deployed federation.

    Raises
    ------
    FedFaceError
        If the run cannot start or fails.
    """
    folder = RunFolder(Path(config.run.dir))
    if config.federation.kind == "simulation" and config.data.kind == "files":
        _check_data(config.data)
    flower = Deployment(config) if config.federation.kind == "deploy" else Simulation(config)
    with _alone(folder):
        _check_over(folder)
        if not config.run.resume:
            _make_room(folder)
        with flower:
            try:
                follow(flower, config, console)
            except KeyboardInterrupt as interrupt:
                raise KeyboardInterrupt(flower.left_behind) from interrupt
            except Ended as end:
                raise Ended(end.number, flower.left_behind) from end
            flower.wait()
    console.print(f"report: {folder.report}", markup=False, highlight=False, soft_wrap=True)


def _check_data(data: DataConfig) -> None:
    """Find out before Flower starts whether all that parties of this machine own is there."""
    names = (*data.silos, *data.packs.values())
    if missing := [name for name in names if not Path(data.root, name).exists()]:
        raise ConfigError(f"data.root={data.root}: there is no {', no '.join(missing)}")


def _make_room(folder: RunFolder) -> None:
    """Refuse a folder that holds a run, unless that one ended before its first round."""
    if has_run(folder):
        resumable = folder.config.exists() and not folder.summary.exists()
        going_on = f", or go on with it by resume={folder.path}" if resumable else ""
        raise ConfigError(f"run.dir={folder.path}: already holds a run; choose another folder or remove it{going_on}")
    clear_failed_start(folder)


@contextmanager
def _alone(folder: RunFolder) -> Iterator[None]:
    """Be the one launcher of a run's folder for the block: what a second one would clean up is the first one's."""
    try:
        with locked(folder.launch_lock):
            try:
                yield
            finally:
                folder.launch_lock.unlink(missing_ok=True)
    except BlockingIOError as error:
        raise ConfigError(f"{folder.path}: its run goes on, under another command; end that first") from error


def _check_not_launched(folder: RunFolder) -> None:
    """Find out whether a run is another command's, which may only have begun to start it."""
    if folder.launch_lock.exists():
        with _alone(folder):
            pass


def _check_over(folder: RunFolder) -> None:
    """Find out whether an interrupted run has really ended."""
    if simulated_in(folder.path):
        raise ConfigError(f"{folder.path}: processes of its run still work in it; end those first")
    if not folder.lock.exists():
        return
    try:
        with locked(folder.lock):
            return
    except BlockingIOError as error:
        raise ConfigError(f"{folder.path}: its run goes on in another process; end that first") from error


def resumed(folder: Path, given: Sequence[str]) -> Config:
    """Return the configuration of an interrupted run, to go on with it.

    Raises
    ------
    ConfigError
        If the folder holds no run or a finished one, or other keys are given: a run keeps its configuration.
    """
    others = [text for text in given if text.partition("=")[0] not in LAUNCH_KEYS]
    if others:
        raise ConfigError(f"resume={folder}: a run keeps its configuration; leave out {' '.join(others)}")
    paths = RunFolder(folder)
    _check_not_launched(paths)
    if paths.summary.exists():
        raise ConfigError(f"resume={folder}: that run is finished")
    if not paths.config.exists():
        raise ConfigError(
            f"resume={folder}: holds no {paths.config.name}; is it a run's folder? "
            "A run that never began has nothing to go on from: give its own command again"
        )
    try:
        saved = OmegaConf.to_container(OmegaConf.load(paths.config))
    except (YAMLError, ValueError, OmegaConfBaseException) as error:
        raise ConfigError(f"{paths.config}: cannot be read ({error}); restore it, or start the run anew") from error
    config = from_container(cast("dict[str, Any]", saved))
    if paths.metrics.exists():
        # Known damage needs no Flower.
        read_metrics(paths.metrics)
    return replace(config, run=replace(config.run, dir=str(folder), launched=time.time(), resume=True))


FAULTS = (FedFaceError, OSError, HydraException, OmegaConfBaseException)

_begun: list[str] = []
"""Runs that Hydra has composed."""

_failed: list[str] = []
"""A sweep's runs that have failed: the others are run all the same."""


@hydra.main(config_path=str(CONF), config_name="config", version_base=None)
def _job(composed: DictConfig) -> None:
    _begun.append(HydraConfig.get().job.name)
    is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    # What Hydra itself catches, it introduces with a line of its own, and of a sweep it tells the first fault alone.
    try:
        _run_composed(composed, is_sweep)
    except FAULTS as error:
        if not is_sweep:
            sys.exit(_line(error))
        _failed.append(Path(HydraConfig.get().runtime.output_dir).name)
        options = " ".join(HydraConfig.get().overrides.task)
        print(_line(f"{_failed[-1]} ({options}): {error}"), file=sys.stderr, flush=True)


def _run_composed(composed: DictConfig, is_sweep: bool) -> None:
    output = Path(HydraConfig.get().runtime.output_dir)
    try:
        if not OmegaConf.is_dict(composed.run) or not composed.run.dir:
            raise ConfigError("run.dir: must name a folder")
        if not isinstance(composed.resume, str):
            raise ConfigError(f"resume={composed.resume}: must name a folder")
        if composed.resume:
            config = resumed(Path(composed.resume).absolute(), HydraConfig.get().overrides.task)
        else:
            folder = output if is_sweep else Path(str(composed.run.dir)).absolute()
            config = validate(composed, absolute_paths(composed, folder, Path.cwd()))
    finally:
        # Hydra has made a sweep's folders, which a run that is refused or resumed has no use for.
        if is_sweep and output.is_dir() and not any(output.iterdir()):
            output.rmdir()
    run(config, HeardConsole())


def _named(text: str) -> str:
    """Return an override whose value is a folder's name as one that Hydra takes for a text, whatever is in it."""
    key, equals, value = text.partition("=")
    # A list, a choice and an interpolation are meant as such.
    if not equals or key not in ("resume", "run.dir") or value[:1] in ("", *"'\"[{$") or "," in value:
        return text
    return f"{key}={quoted(value)}" if key == "resume" or "=" in value else text


def _line(error: object) -> str:
    return f"fedface: {' '.join(str(error).split())}"


def main() -> None:
    """Entry of the ``fedface`` command."""
    end_by_exception()
    sys.argv[1:] = [_named(text) for text in sys.argv[1:]]
    # Makes Hydra hand errors over, of which it would else print a trace.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        _job()
    except BrokenPipeError:
        leave_output()
        sys.exit(_line("nobody reads the output any more"))
    except Ended as end:
        print(_line(end), file=sys.stderr, flush=True)
        sys.exit(end.status)
    except FAULTS as error:
        sys.exit(_line(error))
    except ValueError as error:
        # What Hydra says of a group that is overridden by what is no name.
        if _begun:
            raise
        sys.exit(_line(error))
    except KeyboardInterrupt as interrupt:
        print(_line(str(interrupt) or "interrupted"), file=sys.stderr, flush=True)
        sys.exit(130)
    if _failed:
        sys.exit(_line(f"{numbered(len(_failed), 'run')} of the sweep failed: {', '.join(_failed)}"))


if __name__ == "__main__":
    main()
