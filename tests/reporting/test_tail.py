# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from fedface_flwr.reporting.metrics import MetricsLog
from fedface_flwr.reporting.tail import MetricsTail


def test_a_log_that_is_not_there_yet_has_no_events(tmp_path):
    tail = MetricsTail(tmp_path / "metrics.jsonl")
    assert tail.new_events() == []
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        assert tail.new_events() == []
        written = log.write({"event": "end", "seconds": 1.0})
        assert tail.new_events() == [written]
        assert tail.new_events() == []


@given(cuts=st.lists(st.integers(0, 200)), messages=st.lists(st.text(max_size=12), max_size=8))
def test_each_event_comes_once_in_order_however_its_bytes_arrive(cuts, messages, tmp_path_factory):
    events = [{"event": "warning", "time": 0, "message": message} for message in messages]
    content = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events).encode()
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    tail, seen, place = MetricsTail(path), [], 0
    for cut in [*sorted(cuts), len(content)]:
        with path.open("ab") as file:
            file.write(content[place:cut])
        place = max(place, min(cut, len(content)))
        seen += tail.new_events()
        assert seen == events[: content[:place].count(b"\n")]
    assert seen == events


def test_of_a_resumed_run_only_what_follows_its_own_resume_is_told(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path, since=7.5)
    with MetricsLog(path) as log:
        log.write({"event": "error", "message": "of the time before"})
        log.write({"event": "resume", "round": 1, "launched": 3.0})
        assert tail.new_events() == []
    # The server cuts the log before it goes on.
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert tail.new_events() == []
    with MetricsLog(path) as log:
        own = [log.write({"event": "resume", "round": 2, "launched": 7.5}), log.write({"event": "end", "seconds": 1.0})]
        assert tail.new_events() == own
        assert tail.new_events() == []
