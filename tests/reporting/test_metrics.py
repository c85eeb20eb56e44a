# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
import resource
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedface_flwr.errors import DataError, StateError
from fedface_flwr.reporting.metrics import MetricsLog, last_validation, read_metrics, take_back

LINE = b'{"event": "warning", "message": "m", "time": 5.0}\n'


def test_a_reader_gets_what_write_returned(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    with MetricsLog(path) as log:
        written = [
            log.write({"event": "warning", "message": "größer"}),
            log.write({"event": "end", "seconds": 1.5}),
        ]
        assert read_metrics(path) == written  # flushed before the log is closed
    assert written[0]["message"] == "größer"
    assert 0 <= written[0]["time"] <= written[1]["time"]
    assert all(round(event["time"], 3) == event["time"] for event in written)


def test_arrays_and_numbers_that_are_not_finite_become_plain_json(tmp_path):
    event = {
        "event": "round",
        "loss": math.nan,
        "weights": {"a": np.float32(0.5), "b": np.float64("inf")},
        "candidates": np.array([[1.0, -np.inf]]),
        "round": np.int64(3),
        "names": ("a", "b"),
    }
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        written = log.write(event)
    (read,) = read_metrics(tmp_path / "metrics.jsonl")
    assert read == written
    del read["time"]
    assert read == {
        "event": "round",
        "loss": None,
        "weights": {"a": 0.5, "b": None},
        "candidates": [[1.0, None]],
        "round": 3,
        "names": ["a", "b"],
    }


def test_threads_never_mix_their_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"

    def write_many(log: MetricsLog, name: str) -> None:
        for count in range(200):
            log.write({"event": "warning", "message": name * 500, "count": count})

    with MetricsLog(path) as log:
        threads = [threading.Thread(target=write_many, args=(log, name)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = read_metrics(path)
    for name in "abcd":
        assert [event["count"] for event in events if event["message"] == name * 500] == list(range(200))
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)


@given(cut=st.integers(0, len(LINE) - 2))
def test_a_torn_last_line_is_left_out_and_mended(cut, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    path.write_bytes(LINE + LINE[:cut])
    assert len(read_metrics(path)) == 1
    with MetricsLog(path) as log:
        log.write({"event": "end", "seconds": 1.0})
    assert [event["event"] for event in read_metrics(path)] == ["warning", "end"]


def test_a_resumed_log_appends_and_its_time_goes_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(LINE.rstrip())  # whole, but for its newline
    with MetricsLog(path) as log:
        resumed = log.write({"event": "end", "seconds": 1.0})
    assert 5.0 <= resumed["time"] < 6.0
    assert [event["event"] for event in read_metrics(path)] == ["warning", "end"]


@pytest.mark.parametrize("damaged", [b'{"event": "war\n', b"[1]\n", b'{"time": 1}\n', b'{"event": "end"}\n', b"\n"])
def test_any_other_damage_names_file_and_line(damaged, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(LINE + damaged + LINE)
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2"):
        read_metrics(path)
    with pytest.raises(DataError, match="line 2"):
        MetricsLog(path)
    assert path.read_bytes() == LINE + damaged + LINE


def test_a_missing_log_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl: no such event log"):
        read_metrics(tmp_path / "none.jsonl")


def test_an_event_that_json_cannot_hold_leaves_no_trace(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        with pytest.raises(TypeError):
            log.write({"event": "warning", "message": object()})
        log.write({"event": "end", "seconds": 1.0})
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["end"]


def test_a_log_is_taken_back_to_its_size_and_nothing_is_lost(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        kept = log.write({"event": "validation", "validation": 1})
        size = path.stat().st_size
        lost = [log.write({"event": "validation", "validation": 2}), log.write({"event": "warning", "message": "m"})]
    with path.open("ab") as file:
        file.write(b'{"event": "torn')
    assert take_back(path, size) == lost
    assert read_metrics(path) == [kept]
    assert read_metrics(tmp_path / "metrics.lost.jsonl") == lost
    assert last_validation(path) == 2
    assert take_back(path, size) == []
    assert take_back(tmp_path / "nowhere.jsonl", 0) == []


def test_a_full_disk_is_a_clear_error_and_spoils_no_earlier_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        kept = log.write({"event": "warning", "message": "m"})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
        try:
            with pytest.raises(StateError, match=r"metrics\.jsonl: cannot be written .*free some space"):
                log.write({"event": "warning", "message": "much longer than what is left"})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_metrics(path)[0] == kept
