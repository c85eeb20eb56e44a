# SPDX-License-Identifier: Apache-2.0
"""Options of a benchmark, each read and checked once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from fedface_flwr.errors import ConfigError


class Options:
    """What a suite says of one benchmark.

    Parameters
    ----------
    benchmark : str
        Its name, which begins every error.
    values : mapping
        Its options.
    root : Path
        Folder that relative paths are against.
    known : collection of str
        The options that there are.

    Raises
    ------
    ConfigError
        If there is an unknown option; every method does so for a missing or wrong one.
    """

    def __init__(self, benchmark: str, values: Mapping[str, object], root: Path, known: Collection[str]) -> None:
        self._benchmark, self._values, self._root = benchmark, values, root
        unknown = sorted(str(key) for key in set(values) - set(known))
        if unknown:
            raise ConfigError(f"{benchmark}: no such option: {', '.join(unknown)}; there are {', '.join(known)}")

    def given(self, key: str) -> bool:
        """Return whether the suite has the option."""
        return self._values.get(key) is not None

    def wrong(self, key: str, reason: str) -> ConfigError:
        """Return the error for an option's value."""
        return ConfigError(f"{self._benchmark}: {key}={self._values.get(key)!r}: {reason}")

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text."""
        if not self.given(key):
            if default is None:
                raise ConfigError(f"{self._benchmark}: option {key} is missing")
            return default
        value = self._values[key]
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(key, "must be text (quote it if YAML takes it for something else)")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return one of some texts."""
        value = self.text(key, default)
        if value not in choices:
            raise self.wrong(key, f"must be one of {', '.join(choices)}")
        return value

    def choices(self, key: str, choices: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
        """Return some of some texts, each once; a single one need not be a list."""
        value = self._values[key] if self.given(key) else list(default)
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not listed or any(entry not in choices for entry in listed):
            raise self.wrong(key, f"must list some of {', '.join(choices)}")
        return tuple(dict.fromkeys(str(entry) for entry in listed))

    def whole_number(self, key: str, default: int, least: int, most: int) -> int:
        """Return a whole number within bounds."""
        value = self._values[key] if self.given(key) else default
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"must be a whole number from {least} to {most}")
        return value

    def flips(self, key: str = "flip") -> tuple[bool, ...]:
        """Return which of without and with mirror images are asked for, from true, false or both; true if unsaid."""
        value = self._values[key] if self.given(key) else True
        if value == "both":
            return (False, True)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true, false or both")
        return (value,)

    def file(self, key: str) -> Path:
        """Return the path of a file that is there."""
        return self._path(key, Path.is_file, "file")

    def folder(self, key: str) -> Path:
        """Return the path of a folder that is there."""
        return self._path(key, Path.is_dir, "folder")

    def _path(self, key: str, is_there: Callable[[Path], bool], what: str) -> Path:
        path = self._root / self.text(key)
        try:
            there = is_there(path)
        except OSError as error:
            raise self.wrong(key, f"cannot be looked for ({error.strerror})") from error
        if not there:
            raise self.wrong(key, f"{path} is no {what}")
        return path
