# SPDX-License-Identifier: Apache-2.0
"""YAML files that people write and pass on: plain values only, and no more of them than the file has characters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from fedface_flwr.errors import ConfigError

_LARGEST = 1 << 20
# What PyYAML raises on values that do not fit their tags, such as "!!bool x", besides its own errors.
_UNREADABLE = (OSError, ValueError, yaml.YAMLError, RecursionError, KeyError, IndexError, AttributeError, TypeError)


def parse_yaml(path: Path) -> tuple[Any, bytes]:
    """Return what a file holds, and its bytes.

    Raises
    ------
    ConfigError
        If it cannot be read, is above 1 MiB, or is no YAML of plain values, each key once and no aliases.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ConfigError(f"{path}: above {_LARGEST} bytes; it is not a file of settings")
        loader = _Loader(content.decode("utf-8"))
        # The place that an error names; PyYAML knows files only by their streams.
        loader.name = path.name
        try:
            return loader.get_single_data(), content
        finally:
            loader.dispose()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: is a folder, not a YAML file") from error
    except _UNREADABLE as error:
        raise ConfigError(f"{path}: not a readable YAML file: {' '.join(str(error).split())[:500]}") from error


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader that takes no key twice, and no alias, with which a few lines can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(None, None, "aliases are not taken here", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key is there twice", node.start_mark)
        return mapping


# YAML 1.1, which PyYAML reads, takes 1e-05 for text; YAML 1.2, JSON and people take it for a number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
