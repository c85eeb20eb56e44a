# SPDX-License-Identifier: Apache-2.0
"""A run's configuration as Flower carries it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedface_flwr.compose import compose_config
from fedface_flwr.errors import ConfigError
from fedface_flwr.run_config import config_of_run


def test_a_run_that_was_given_its_configuration_takes_that() -> None:
    config = compose_config(["seed=5"], {"run.dir": "/somewhere"})
    assert config_of_run(config.to_json(), "seed=9", 12) == config


def test_a_bare_run_composes_the_defaults_in_a_folder_of_its_own() -> None:
    config = config_of_run("", "", 12)
    assert config.run.dir == "runs/flwr-12"
    assert config.run.token == "flwr-12"
    assert config == compose_config([], {"run.dir": "runs/flwr-12", "run.token": "flwr-12"})


def test_a_bare_run_takes_overrides_apart_as_a_shell_does() -> None:
    config = config_of_run("", "strategy=pfm seed=2 'data.root=with blank' run.dir=mine", 12)
    assert (config.strategy.name, config.seed, config.data.root) == ("pfm", 2, "with blank")
    assert config.run.dir == "mine"


def test_overrides_with_an_open_quote_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"overrides=.*No closing quotation"):
        config_of_run("", "data.root='x", 12)


def test_what_a_silo_imports_for_a_message_is_light() -> None:
    """A deployed silo's process neither computes nor composes; both libraries take seconds to import."""
    program = (
        "import sys; from fedface_flwr import client_app; from clients.service import proxy;"
        "print(*sorted({'torch', 'hydra', 'omegaconf', 'sklearn', 'scipy', 'cv2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "\n"
