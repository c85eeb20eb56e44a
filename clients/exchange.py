# SPDX-License-Identifier: Apache-2.0
"""A question to a party and its answer, wherever the party computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from clients.contract import Scalars


@dataclass(frozen=True)
class Request:
    """What a party is asked.

    Attributes
    ----------
    kind : str
        ``prepare``, ``train`` or ``evaluate``.
    config : str
        The run's configuration as JSON.
    arrays : list of ndarray
        One-dimensional, in the contract's order; they may be read-only, and live no longer than the call.
    scalars : dict
        The message's.
    """

    kind: str
    config: str
    arrays: list[npt.NDArray[Any]]
    scalars: Scalars


@dataclass(frozen=True)
class Answer:
    """What a party answers: arrays in the contract's order, and scalars."""

    arrays: list[npt.NDArray[Any]]
    scalars: Scalars


Ask = Callable[[Request], Answer]
