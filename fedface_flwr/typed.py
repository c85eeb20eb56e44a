# SPDX-License-Identifier: Apache-2.0
"""From plain values to a frozen dataclass, each checked against its field's type."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedface_flwr.errors import ConfigError

T = TypeVar("T")


def require(ok: bool, key: str, value: object, rule: str) -> None:
    """Raise a ConfigError that names key, value and rule, unless ``ok``."""
    if not ok:
        raise ConfigError(f"{key}={value!r}: {rule}")


def build(kind: type[T], value: Any) -> T:
    """Return a dataclass of plain dictionaries, lists and scalars, which must be there for every field.

    Fields are dataclasses, ``Literal``, ``tuple`` of one type, float (finite; whole numbers are taken) or plain types.

    Raises
    ------
    ConfigError
        Naming the first key, with dots, that is unknown, missing or of the wrong type; or what the dataclass raises.
    """
    return _dataclass(kind, value, "")


def _value(kind: Any, value: Any, key: str) -> Any:
    """Check ``value`` against the type ``kind`` and convert it; ``key`` is its place, for the error."""
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast("type[Any]", kind), value, key)
    origin = get_origin(kind)
    if origin is Literal:
        choices = get_args(kind)
        # Compared with their types, for 18.0 == 18.
        known = any(type(value) is type(choice) and value == choice for choice in choices)
        require(known, key, value, f"must be one of {', '.join(map(str, choices))}")
        return value
    if origin is tuple:
        require(isinstance(value, (list, tuple)), key, value, "must be a list")
        return tuple(_value(get_args(kind)[0], item, f"{key}[{i}]") for i, item in enumerate(value))
    if kind is float:
        # Whole numbers may be larger than any float.
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        require(number, key, value, "must be a finite number")
        return float(value)
    require(type(value) is kind, key, value, f"must be of type {kind.__name__}")
    return value


def _dataclass(kind: type[T], value: Any, key: str) -> T:
    require(isinstance(value, Mapping), key or "config", value, "must be a mapping")
    hints = get_type_hints(kind)
    dot = f"{key}." if key else ""
    unknown, missing = sorted(set(value) - set(hints), key=str), sorted(set(hints) - set(value))
    if unknown:
        raise ConfigError(f"{dot}{unknown[0]}: no such key; known here: {', '.join(sorted(hints))}")
    if missing:
        raise ConfigError(f"{dot}{missing[0]}: missing; conf/ holds a default for every key")
    return kind(**{name: _value(hint, value[name], f"{dot}{name}") for name, hint in hints.items()})
