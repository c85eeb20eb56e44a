# SPDX-License-Identifier: Apache-2.0
"""SUITE.yaml, validated once at the door: which benchmarks a model is evaluated on, and how."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.protocols.protocol import Benchmark
from fedface_flwr.yaml_file import parse_yaml

KINDS = {
    "pairs": "fedface_flwr.protocols.pairs",
    "ijb": "fedface_flwr.protocols.ijb",
    "megaface": "fedface_flwr.protocols.megaface",
    "rfw": "fedface_flwr.protocols.rfw",
    "tinyface": "fedface_flwr.protocols.tinyface",
}
"""The module of each kind of benchmark, imported only when a suite has one."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")


@dataclass(frozen=True)
class Entry:
    """One benchmark of a suite, its own options not looked at yet."""

    name: str
    kind: str
    options: Mapping[str, object]


@dataclass(frozen=True)
class Suite:
    """A suite.

    Attributes
    ----------
    path : Path
        Its file, against whose folder the paths in it are.
    digest : str
        Of its file's content.
    entries : tuple of Entry
        Its benchmarks, in order, names unique.
    """

    path: Path
    digest: str
    entries: tuple[Entry, ...]


def read_suite(path: Path) -> Suite:
    """Read and validate a SUITE.yaml, but for the options that only a benchmark's kind knows.

    Raises
    ------
    ConfigError
        If the file cannot be read, or is no suite.
    """
    loaded, content = parse_yaml(path)
    try:
        entries = _entries(loaded)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return Suite(path, blake2b(content, digest_size=16).hexdigest(), entries)


def open_benchmarks(suite: Suite, only: Collection[str] = ()) -> list[Benchmark]:
    """Check the options and files of a suite's benchmarks.

    Parameters
    ----------
    suite : Suite
        As read.
    only : collection of str
        Names of the benchmarks wanted; all if empty.

    Raises
    ------
    ConfigError
        If a name is not in the suite, or an option is unknown, missing or wrong.
    DataError
        If a file that an option names is damaged.
    """
    names = [entry.name for entry in suite.entries]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ConfigError(f"{suite.path}: has no {', '.join(unknown)}; it has {', '.join(names)}")
    wanted = [entry for entry in suite.entries if not only or entry.name in only]
    try:
        return [_open(entry, suite.path.absolute().parent) for entry in wanted]
    except (ConfigError, DataError) as error:
        raise type(error)(f"{suite.path}: {error}") from error


def _open(entry: Entry, root: Path) -> Benchmark:
    try:
        module = importlib.import_module(KINDS[entry.kind])
    except ImportError as error:
        raise ConfigError(f"{entry.name}: kind {entry.kind} needs what is not installed: {error}") from error
    benchmark: Benchmark = module.from_options(entry.name, entry.options, root)
    return benchmark


def _entries(content: Any) -> tuple[Entry, ...]:
    top = _mapping(content, "the file", ("benchmarks",), ("defaults",))
    defaults = _mapping(top.get("defaults") or {}, "defaults", (), tuple(KINDS))
    by_kind = {kind: _mapping(options or {}, f"defaults.{kind}", (), None) for kind, options in defaults.items()}
    listed = top["benchmarks"]
    if not isinstance(listed, list) or not listed:
        raise ConfigError("benchmarks: must be a list of at least one benchmark")
    entries = [_entry(content, f"benchmarks[{place}]", by_kind) for place, content in enumerate(listed)]
    _unique([entry.name for entry in entries])
    return tuple(entries)


def _entry(content: Any, where: str, defaults: Mapping[str, Mapping[str, object]]) -> Entry:
    values = _mapping(content, where, ("name", "kind"), None)
    name, kind = values.pop("name"), values.pop("kind")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{where}.name={name!r}: must be text that matches {_NAME.pattern}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{where}.kind={kind!r}: must be one of {', '.join(KINDS)}")
    return Entry(name, kind, {**defaults.get(kind, {}), **values})


def _unique(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        # Names become parts of file names, and some file systems know no case.
        if name.lower() in seen:
            raise ConfigError(f"benchmarks: two are named {name!r}; names must be unique, whatever their case")
        seen.add(name.lower())


def _mapping(content: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...] | None) -> dict[str, Any]:
    """Return a mapping of text keys with the required ones and no others than the optional; None allows any."""
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{where}: must be a mapping with {', '.join(required) or 'keys that are text'}")
    missing = [key for key in required if content.get(key) is None]
    unknown = [] if optional is None else sorted(set(content) - {*required, *optional})
    if missing or unknown:
        complaints = [f"{' and '.join(missing)} missing"] * bool(missing)
        complaints += [f"no such key: {', '.join(unknown)}"] * bool(unknown)
        raise ConfigError(f"{where}: {'; '.join(complaints)}")
    return dict(content)
