# SPDX-License-Identifier: Apache-2.0
"""The model that validators hold, so that candidate averages reach them as differences from it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.federation.difference import AnchoredModel, encode
from fedface_flwr.federation.layout import Counters, Vector

ANCHORED = 16
"""Validation rounds with one anchor: candidates draw away from it, and rounding is in proportion to the distance."""


class Anchor:
    """A candidate of some validation round, sent whole once, and who holds it.

    The bits that a candidate is judged by depend on the anchor. It is replaced by count alone, whatever becomes of
    messages and validators, so that a repeated run judges the same bits.

    Parameters
    ----------
    num_parameters : int
        How many of a model's values travel as differences; the rest, BatchNorm's statistics, travel whole.
    dtype : str
        In which type.
    """

    def __init__(self, num_parameters: int, dtype: str) -> None:
        self._num_parameters, self._dtype = num_parameters, dtype
        self._values: Vector | None = None
        self._version, self._since = "", 0
        self._holders: set[str] = set()

    def encode(self, number: int, averages: npt.NDArray[np.float32], counters: Counters) -> Iterator[AnchoredModel]:
        """Yield the candidates of validation round ``number`` as they travel.

        Raises
        ------
        ValueError
            If a candidate is not finite.
        """
        if self._values is None or number - self._since >= ANCHORED:
            # A new array: the one before may be on its way to the disk.
            self._values, self._since = averages[0].copy(), number
            self._version = f"{number}-{secrets.token_hex(8)}"
            self._holders.clear()
        anchor = self._values[: self._num_parameters]
        for values in averages:
            difference = encode(values[: self._num_parameters], self._dtype, anchor)
            # Copies, for whoever has all averages lets go of them.
            yield AnchoredModel(self._version, difference, values[self._num_parameters :].copy(), counters)

    def with_anchor(self, model: AnchoredModel) -> AnchoredModel:
        """Return a candidate that brings the anchor along."""
        return replace(model, anchor=self._values)

    def held_by(self, validator: str) -> bool:
        """Return whether a validator is known to hold the anchor."""
        return validator in self._holders

    def note(self, validator: str, holds: bool) -> None:
        """Take note of whether a validator holds the anchor."""
        (self._holders.add if holds else self._holders.discard)(validator)

    def saved_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the anchor, if there is one yet."""
        return {} if self._values is None else {"anchor": self._values}

    def saved_values(self) -> dict[str, Any]:
        """Return its name and age; who holds it is found out anew."""
        return {"version": self._version, "since": self._since}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> None:
        """Take what was saved; those who do not hold it will say so."""
        self._values = arrays.get("anchor")
        self._version, self._since = values["version"], values["since"]
