# SPDX-License-Identifier: Apache-2.0
"""Where commands print their tables."""

from __future__ import annotations

import os

from rich.console import Console

_UNBOUNDED = 10_000  # columns; rich takes 80 where nothing tells it


def open_console() -> Console:
    """Return the standard output as a console.

    Where it is no terminal and ``COLUMNS`` does not bound it, lines are as long as what they hold: a file or another
    program has no edge.
    """
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNBOUNDED
    return console
