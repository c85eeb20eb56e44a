# SPDX-License-Identifier: Apache-2.0
"""Progress on a terminal's error stream, and nothing where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedface_flwr.files import printable


class Advance(Protocol):
    """Is told how many more are done."""

    def __call__(self, count: int) -> None:
        """Add to what is done."""
        ...


class Reporter:
    """Shows how far a job is.

    Parameters
    ----------
    quiet : bool
        Show nothing, even on a terminal.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line beside the bars."""
        self.console.print(printable(text), markup=False)

    @contextmanager
    def bar(self, what: str, total: int, done: int = 0) -> Iterator[Advance]:
        """Show a bar for the block, which calls what it is given with the counts of what was done."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal, transient=True) as progress:
            task = progress.add_task(what, total=total, completed=done)
            yield lambda count: progress.advance(task, count)
