# SPDX-License-Identifier: Apache-2.0
"""What a silo lets itself be asked: bounds that its owner sets in a file of its own, whatever the server wishes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedface_flwr.errors import ConfigError


@dataclass(frozen=True)
class SiloPolicy:
    """The bounds of one silo.

    Parameters
    ----------
    max_candidates : int
        Models that a validator scores in one validation round.
    max_tests : int
        Tests that a validator runs in one run.
    score_resolution : float
        Percent points to which a validator rounds every score that it sends.
    min_pairs : int
        Fewest pairs that a score may rest on: one over few pairs would tell about single images.
    min_images : int
        Fewest images, batch by steps, that a trainer's figures and update may rest on.
    max_answers : int
        Different models that a validator judges in one run, all in all.
    max_rounds : int
        Highest training round that a silo takes part in.
    max_rate : float
        Highest learning rate that a trainer accepts.
    """

    max_candidates: int = 8
    max_tests: int = 32
    score_resolution: float = 0.01
    min_pairs: int = 100
    min_images: int = 16
    max_answers: int = 20_000
    max_rounds: int = 1_000_000
    max_rate: float = 10.0

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str) -> SiloPolicy:
        """Return the policy that a mapping describes; keys that are not in it have their defaults.

        Raises
        ------
        ConfigError
            If a key is unknown or its value cannot be a bound; ``where`` says in which file.
        """
        kinds = {field.name: type(field.default) for field in fields(cls)}
        if unknown := sorted(set(values) - set(kinds)):
            raise ConfigError(f"{where}: no such key: {', '.join(unknown)}; known are {', '.join(kinds)}")
        return cls(**{key: _bound(value, kinds[key], f"{where}: {key}") for key, value in values.items()})

    @classmethod
    def load(cls, path: Path) -> SiloPolicy:
        """Return the policy of a TOML file, or the default one where there is no file.

        Raises
        ------
        ConfigError
            If the file cannot be read, or does not hold a policy.
        """
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: not a readable TOML file ({error}); mend it or remove it") from error
        return cls.read(values, str(path))

    def to_toml(self) -> str:
        """Return the policy as the text of a TOML file."""
        # A JSON number is a TOML number, but for one like 1e-05, which TOML reads as well.
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in asdict(self).items())


def _bound(value: Any, kind: type, where: str) -> Any:
    numeric = not isinstance(value, bool) and (isinstance(value, kind) or (kind is float and isinstance(value, int)))
    if not numeric or not (0 < value < 1e18):
        wanted = "a whole number of at least 1" if kind is int else "a number above 0"
        raise ConfigError(f"{where}={value!r}: must be {wanted}")
    return float(value) if kind is float else int(value)
