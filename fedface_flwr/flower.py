# SPDX-License-Identifier: Apache-2.0
"""A run in a SuperLink's hands, by Flower's own command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedface_flwr.config import Config
from fedface_flwr.errors import FedFaceError

APP = Path(__file__).resolve().parents[1]
PATIENCE = 60.0


def quiet_environment() -> dict[str, str]:
    """Return this process's environment, changed so that Flower's programs are found and keep off the network."""
    binaries = str(Path(sys.executable).parent)
    home = os.environ.get("FLWR_HOME")
    return {
        **os.environ,
        # Flower's programs run in the run's folder, from where a relative path would lead elsewhere.
        **({"FLWR_HOME": os.path.abspath(home)} if home else {}),
        "PATH": os.pathsep.join([binaries, os.environ.get("PATH", "")]),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


class FlowerRun:
    """One run, submitted to a named SuperLink.

    Parameters
    ----------
    config : Config
        The run's configuration, with absolute paths.
    link : str
        The SuperLink's name in Flower's ``config.toml``.
    environment : mapping of str to str
        For Flower's command line; ``FLWR_HOME`` says where that file is.
    hint : str
        Where a person finds more of what went wrong.
    """

    def __init__(self, config: Config, link: str, environment: Mapping[str, str], hint: str) -> None:
        if not (APP / "pyproject.toml").is_file():
            raise FedFaceError(
                f"{APP}: no pyproject.toml; run fedface from a checkout, installed with `pip install -e .`"
            )
        self._config, self._link, self._environment, self._hint = config, link, dict(environment), hint
        self.run_id = ""

    def submit(self, scratch: Path, federation: str = "") -> None:
        """Hand the run to the SuperLink.

        Parameters
        ----------
        scratch : Path
            A folder for the run's configuration as Flower reads it.
        federation : str
            Flower's federation options, of a simulation.

        Raises
        ------
        FedFaceError
            If the SuperLink does not take it.
        """
        # JSON strings are TOML strings, which spares a writer.
        overrides = scratch / "run-config.toml"
        overrides.write_text(f"config = {json.dumps(self._config.to_json())}\n")
        options = ["--federation-config", federation] if federation else []
        answer = self._flwr("run", str(APP), self._link, *options, "--run-config", str(overrides))
        self.run_id = str(answer["run-id"])

    def check(self) -> bool:
        """Return whether the run has succeeded; False means that it goes on.

        Raises
        ------
        FedFaceError
            If it has failed, with Flower's reason.
        """
        state = self._flwr("ls", self._link, "--run-id", self.run_id)["runs"][0]
        if state["status"] == "finished:completed":
            return True
        if state["status"].startswith("finished"):
            raise FedFaceError(f"the run is {state['status']}: {state.get('status-details', '')}; {self._hint}")
        return False

    def wait(self) -> None:
        """Wait until Flower has closed a run that reported its end.

        Raises
        ------
        FedFaceError
            If it fails to.
        """
        deadline = time.monotonic() + PATIENCE
        while not self.check():
            if time.monotonic() > deadline:
                raise FedFaceError(f"Flower did not close the run within {PATIENCE:g} s; {self._hint}")
            time.sleep(0.5)

    def _flwr(self, *arguments: str) -> Any:
        done = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            env=self._environment,
            cwd=self._config.run.dir,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        try:
            answer = json.loads(done.stdout)
            if answer.get("success") is False:
                raise FedFaceError(f"flwr {arguments[0]}: {' '.join(str(answer.get('error-message')).split())}")
            return answer
        except ValueError as error:
            raise FedFaceError(f"flwr {arguments[0]}: {' '.join((done.stdout + done.stderr).split())}") from error
