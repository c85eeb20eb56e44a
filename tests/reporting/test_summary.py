# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pytest

from fedface_flwr.errors import DataError
from fedface_flwr.reporting.summary import read_summary, tar_and_doubt, write_summary

Fields = dict[str, Any]


def figures(accuracy: float = 0.75) -> Fields:
    return {
        "accuracy": accuracy,
        "accuracy_std": 0.0125,
        "tar_at_far_1e-3": 0.12,
        "tar_at_far_1e-4": None,
        "auc": 0.85,
        "pairs": 3000,
    }


def summary_fields(silos: list[str], **fields: Any) -> Fields:
    account = {
        "flower_startup": 4.0,
        "training": 90.0,
        "validation": 10.0,
        "testing": 10.0,
        "other": 6.0,
        "total": 120.0,
    }
    return {
        "method": "fedface",
        "seed": 0,
        "rounds": 4,
        "steps_per_round": 10,
        "seconds": 120.0,
        "loss_ema": dict.fromkeys(silos, 5.0),
        "bytes_sent": dict.fromkeys(silos, 2500000),
        "tests": {"lfw": figures()},
        "account": account,
        "weights": {silo: 1 / len(silos) for silo in silos},
        "fold_half": "second",
    } | fields


def test_a_reader_gets_what_was_written(tmp_path):
    for fields in (summary_fields(["a"]), summary_fields(["a"], tests_by_silo={"a": {"lfw": figures()}})):
        write_summary(tmp_path / "summary.json", fields)
        assert read_summary(tmp_path / "summary.json") == fields
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"seconds": None, "secs": 1.0}, r"unknown fields \['secs'\]"),
        ({"account": {"total": 1.0}}, r"account: missing fields \['flower_startup', "),
        ({"tests": {"lfw": {"accuracy": 0.5}}}, r"tests\.lfw: missing fields \['accuracy_std'"),
        ({"tests": {"lfw": 0.5}}, r"tests\.lfw: expected an object of fields, found float"),
        ({"tests_by_silo": {"a": {"lfw": {}}}}, r"tests_by_silo\.a\.lfw: missing"),
        ({"seconds": float("nan")}, "NaN or infinite"),
    ],
)
def test_wrong_fields_are_named_and_the_old_file_stays(change, complaint, tmp_path):
    path = tmp_path / "summary.json"
    write_summary(path, summary_fields(["a"]))
    with pytest.raises(DataError, match=complaint):
        write_summary(path, summary_fields(["a"]) | change)
    assert read_summary(path) == summary_fields(["a"])


def test_reading_checks_the_file(tmp_path):
    path = tmp_path / "summary.json"
    with pytest.raises(DataError, match=r"summary\.json: no such summary"):
        read_summary(path)
    path.write_text('{"method": ')
    with pytest.raises(DataError, match=r"summary\.json: not JSON"):
        read_summary(path)
    lacking = summary_fields(["a"])
    del lacking["weights"]
    path.write_text(json.dumps(lacking))
    with pytest.raises(DataError, match=r"summary\.json: missing fields \['weights'\]"):
        read_summary(path)
    path.write_text("[]")
    with pytest.raises(DataError, match="found list"):
        read_summary(path)


@pytest.mark.parametrize(
    ("pairs", "far", "rate", "doubt"),
    [
        (999, 1e-3, None, "not decided"),
        (1000, 1e-3, 0.12, "uncertain"),
        (9999, 1e-3, 0.12, "uncertain"),
        (10_000, 1e-3, 0.12, ""),
        # Decided, but not known: there is nothing to doubt.
        (20_000, 1e-4, None, ""),
        (float("inf"), 1e-3, None, "not decided"),
    ],
)
def test_a_rate_is_doubted_where_all_pairs_together_could_not_show_it(pairs, far, rate, doubt):
    found, note = tar_and_doubt(figures() | {"pairs": pairs}, far)
    assert (found, note.partition(":")[0]) == (rate, doubt)
