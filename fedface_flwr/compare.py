# SPDX-License-Identifier: Apache-2.0
"""``fedface-compare``: several runs, some at a time, and what they show side by side."""

from __future__ import annotations

import argparse
import glob
import itertools
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from rich.console import Console

from fedface_flwr.compose import quoted
from fedface_flwr.errors import ConfigError, FedFaceError
from fedface_flwr.files import write_text
from fedface_flwr.reporting.comparison import comparison_table, write_comparison
from fedface_flwr.reporting.failed_start import has_run
from fedface_flwr.reporting.results import results_table
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.summary import read_summary
from fedface_flwr.reporting.terminal import open_console
from fedface_flwr.stopping import Ended, end_by_exception


@dataclass(frozen=True)
class Job:
    """One run of a comparison: the Hydra overrides that it has of its own, and its folder."""

    name: str
    overrides: tuple[str, ...]
    folder: RunFolder


def expand(overrides: Sequence[str], out: Path) -> list[Job]:
    """Return one job for every combination of the values that overrides list, as Hydra's multirun would.

    Parameters
    ----------
    overrides : sequence of str
        Hydra overrides, such as ``strategy=fedavg,fedface``.
    out : Path
        Folder of the comparison; each job gets a folder in it, named after what distinguishes the job.

    Raises
    ------
    ConfigError
        If an override cannot be read.
    """
    choices: list[list[str]] = []
    try:
        for text, override in zip(overrides, OverridesParser.create().parse_overrides(list(overrides)), strict=True):
            swept = override.is_sweep_override()
            values = override.sweep_string_iterator() if swept else ()
            choices.append([f"{override.key_or_group}={value}" for value in values] if swept else [text])
    except HydraException as error:
        raise ConfigError(str(error).splitlines()[0]) from error
    jobs: dict[str, Job] = {}
    for chosen in itertools.product(*choices):
        own = [text for text, choice in zip(chosen, choices, strict=True) if len(choice) > 1]
        name = ",".join(own).replace("/", "-") or "run"
        if name in jobs:
            raise ConfigError(f"two runs would be called {name}; list each value once")
        jobs[name] = Job(name, chosen, RunFolder(out / name))
    return list(jobs.values())


def run_job(job: Job, console: Console, lock: threading.Lock, running: list[subprocess.Popen[str]]) -> str:
    """Run a job that is not finished yet, showing its lines under its name; return the reason if it fails.

    The processes that were started are in ``running``.
    """
    try:
        overrides = _claim(job)
    except ConfigError as error:
        return str(error)
    if not overrides:
        return ""
    # Without -P, what lies in the folder that a person works in could be taken for the package.
    command = [sys.executable, "-P", "-m", "fedface_flwr.launch", *overrides]
    last = ""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        running.append(process)
        try:
            for line in process.stdout or ():
                last = line.rstrip() or last
                with lock:
                    console.print(f"[{job.name}] {line.rstrip()}", markup=False, highlight=False, soft_wrap=True)
        except BaseException:
            process.terminate()
            raise
    if process.returncode < 0:
        return f"ended by signal {-process.returncode}"
    return (last or f"ended with status {process.returncode}") if process.returncode else ""


def _claim(job: Job) -> tuple[str, ...]:
    """Prepare a job's folder; return the overrides to run it with, none if it has been run.

    An interrupted run goes on; what ended before its first round is set aside.

    Raises
    ------
    ConfigError
        If the folder holds a run of other overrides.
    """
    asked = "\n".join(job.overrides) + "\n"
    note = job.folder.path / "overrides.txt"
    written = note.read_text(encoding="utf-8") if note.exists() else None
    if job.folder.summary.exists():
        if written not in (None, asked):
            raise ConfigError(
                f"{job.folder.path}: holds a run of other overrides ({note.name} lists them); use another --out"
            )
        return ()
    if written == asked and job.folder.config.exists() and has_run(job.folder):
        return (f"resume={quoted(str(job.folder.path))}",)
    if job.folder.path.exists():
        earlier = len(list(job.folder.path.parent.glob(f"{glob.escape(job.name)}.interrupted-*")))
        job.folder.path.rename(job.folder.path.with_name(f"{job.name}.interrupted-{earlier + 1}"))
    write_text(note, asked)
    return (*job.overrides, f"run.dir={quoted(str(job.folder.path))}")


def compare(jobs: Sequence[Job], out: Path, at_once: int, console: Console) -> None:
    """Run what has not been run, then print one table and write the comparison's files.

    Raises
    ------
    FedFaceError
        If runs fail, with each one's reason; the others are finished, and kept for the next call.
    """
    out.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()
    running: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        try:
            reasons = list(pool.map(lambda job: run_job(job, console, lock, running), jobs))
        except Ended:
            # Ctrl-C reaches them by itself, a signal to this process does not.
            for process in running:
                process.terminate()
            raise
    faults = [f"{job.name}: {reason}" for job, reason in zip(jobs, reasons, strict=True) if reason]
    if faults:
        raise FedFaceError("; ".join(faults))
    summaries = [read_summary(job.folder.summary) for job in jobs]
    console.print(comparison_table(summaries))
    write_text(out / "results.md", results_table(summaries))
    report = out / "comparison.html"
    write_comparison(report, [job.folder.path for job in jobs])
    console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Entry of the ``fedface-compare`` command."""
    parser = argparse.ArgumentParser(description="Run every combination of the listed values and compare the runs.")
    parser.add_argument("overrides", nargs="+", help="Hydra overrides; key=a,b runs both")
    parser.add_argument("--out", type=Path, required=True, help="folder; finished runs in it are not run again")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (default 1)")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    end_by_exception()
    try:
        compare(expand(arguments.overrides, out), out, max(arguments.jobs, 1), open_console())
    except (FedFaceError, OSError) as error:
        print(f"fedface-compare: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except Ended as end:
        print(f"fedface-compare: {end}", file=sys.stderr, flush=True)
        sys.exit(end.status)


if __name__ == "__main__":
    main()
