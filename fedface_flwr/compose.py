# SPDX-License-Identifier: Apache-2.0
"""From ``conf/`` to the validated configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from fedface_flwr.config import Config, from_container
from fedface_flwr.errors import ConfigError

LAUNCH_KEYS = ("superlink", "resume")
"""Keys that say where and how a run is launched, at the top of ``conf/``, where a person types them."""

CONF = Path(__file__).resolve().parents[1] / "conf"


def validate(composed: DictConfig, changes: Mapping[str, Any]) -> Config:
    """Validate what Hydra composed, after setting ``changes`` (dotted keys), as :func:`from_container` does.

    Raises
    ------
    ConfigError
        Also for a key that has no value yet, such as ``data.root``.
    """
    composed = composed.copy()
    try:
        for key, value in changes.items():
            OmegaConf.update(composed, key, value)
        container = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key}: has no default; give it, as in {error.full_key}=VALUE") from error
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from error
    run = cast("dict[str, Any]", container)
    return from_container({key: value for key, value in run.items() if key not in LAUNCH_KEYS})


def compose_config(overrides: Sequence[str], changes: Mapping[str, Any]) -> Config:
    """Compose ``conf/`` with Hydra overrides and validate it; errors as :func:`validate`."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base=None):
            composed = compose("config", overrides=list(overrides))
    except OverrideParseException as error:
        raise ConfigError(f"{error.override}: not an override ({error.message.splitlines()[0]})") from error
    except HydraException as error:
        raise ConfigError(str(error)) from error
    return validate(composed, changes)


def quoted(text: str) -> str:
    """Quote a value for Hydra, to which commas and equals signs mean something."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + (r"\'" if found[2] else ""), text)
    return f"'{escaped}'"
