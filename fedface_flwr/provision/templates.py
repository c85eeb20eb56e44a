# SPDX-License-Identifier: Apache-2.0
"""The text files of the kits, written with ``@NAME@`` where a federation's own values go."""

from __future__ import annotations

import re
from importlib import resources

PLACE = re.compile(r"@([A-Z_]+)@")


def fill(template: str, values: dict[str, str]) -> str:
    """Return a template's text with its places filled; one that has no value is a fault of the program."""
    text = (resources.files(__package__) / "templates" / template).read_text(encoding="utf-8")
    return PLACE.sub(lambda place: values[place[1]], text)
