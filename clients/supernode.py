# SPDX-License-Identifier: Apache-2.0
"""``fedface-supernode``: Flower's SuperNode, with other pauses.

Flower's own looks for a message once in three seconds, and for its ClientApp's reply twice a second. A round waits for
the last of its silos, and so for most of the longest pause each time; looking costs a silo next to nothing. Flower has
no option for either. Everything else, the command line above all, is Flower's.
"""

from __future__ import annotations

import time
from typing import Any

from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

PAUSES = {3: 1.0, 0.5: 0.1}
"""Seconds by the seconds that Flower's loop would pause."""


class Clock:
    """The module ``time`` as Flower's loop sees it: a pause that has a shorter one takes that."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Pause."""
        time.sleep(PAUSES.get(seconds, seconds))


def main() -> None:
    """Be a SuperNode."""
    # The module's name for ``time``, which is all that is changed, and in this process alone.
    vars(start_client_internal)["time"] = Clock()
    flower_supernode()
