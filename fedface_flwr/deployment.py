# SPDX-License-Identifier: Apache-2.0
"""A run on a federation that is already there: submitted to its SuperLink, and left to it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType

from fedface_flwr.config import Config
from fedface_flwr.flower import FlowerRun, quiet_environment


class Deployment:
    """A run of a deployed federation.

    The run is the SuperLink's: it goes on when the one who follows it goes away.

    Parameters
    ----------
    config : Config
        The run's configuration, with absolute paths.

    Raises
    ------
    FedFaceError
        If the SuperLink cannot be reached or does not take the run, or the run ends without having succeeded.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._flower = FlowerRun(
            config, config.federation.superlink, quiet_environment(), "the SuperLink's log has the reason"
        )

    def __enter__(self) -> Deployment:
        Path(self._config.run.dir).mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def submit(self) -> None:
        """Hand the run to the SuperLink."""
        with tempfile.TemporaryDirectory(prefix="fedface-") as scratch:
            self._flower.submit(Path(scratch))

    def check(self) -> bool:
        """Return whether the run has succeeded; False means that it goes on."""
        return self._flower.check()

    def wait(self) -> None:
        """Wait until Flower has closed a run that reported its end."""
        self._flower.wait()

    @property
    def left_behind(self) -> str:
        """What to tell a person who stops to follow the run."""
        link, number = self._config.federation.superlink, self._flower.run_id
        return f"the run goes on as {number}; `flwr stop {number} {link}` ends it, its folder is {self._config.run.dir}"
