# SPDX-License-Identifier: Apache-2.0
"""The configuration of a run, from what Flower carries of it."""

from __future__ import annotations

import shlex
from functools import lru_cache

from fedface_flwr.config import Config, from_json
from fedface_flwr.errors import ConfigError


@lru_cache(maxsize=8)
def config_of_run(config: str, overrides: str, run_id: int) -> Config:
    """Return a Flower run's configuration, the same on the server and on every silo.

    Parameters
    ----------
    config : str
        Run-config key ``config``: the whole configuration as JSON, which ``fedface`` fills in. If empty, as with a bare
        ``flwr run``, ``conf/`` is composed here.
    overrides : str
        Run-config key ``overrides``: Hydra overrides in that case, separated by blanks.
    run_id : int
        Flower's, from which the folder's default name comes.
    """
    if config:
        return from_json(config)
    # Hydra is slow to import, and a deployed silo composes nothing.
    from fedface_flwr.compose import compose_config

    try:
        chosen = shlex.split(overrides)
    except ValueError as error:
        raise ConfigError(f"run-config key overrides={overrides!r}: {error}; quote it as a shell would") from error
    own = {"run.dir": f"runs/flwr-{run_id}", "run.token": f"flwr-{run_id}"}
    given = {o.partition("=")[0] for o in chosen}
    return compose_config(chosen, {key: value for key, value in own.items() if key not in given})
