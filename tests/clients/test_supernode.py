# SPDX-License-Identifier: Apache-2.0
"""The pauses of a SuperNode; that it works is shown where whole federations are started."""

from __future__ import annotations

import inspect
import re
import time

from flwr.supernode import start_client_internal

from clients.supernode import PAUSES, Clock


def test_flowers_loop_has_the_pauses_that_are_changed_and_no_others() -> None:
    pauses = re.findall(r"time\.sleep\((.*?)\)", inspect.getsource(start_client_internal))
    assert {float(pause) for pause in pauses} == set(PAUSES)


def test_the_loops_clock_is_time_but_for_those_pauses(monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for seconds in (3, 0.5, 7):
        Clock().sleep(seconds)
    assert slept == [1.0, 0.1, 7]
    assert Clock().monotonic is time.monotonic
