# SPDX-License-Identifier: Apache-2.0
"""What leaves a silo, and what does not, with the log of both."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from grid import deployed_node, tiny_config

from clients.adapter import Serialiser, properties_reply, serialise, to_records
from clients.contract import PREPARE, QUERY, write_request
from clients.gate import Gate
from fedface_flwr.client_app import app
from fedface_flwr.errors import DataError, ProtocolError, StateError, TrainingError
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

MODEL = np.arange(6, dtype=np.float32)
COUNTERS = np.array([3], dtype=np.int64)
DIFFERENCE, STATISTICS = MODEL[:4], MODEL[4:]
FIGURES = {"images": 12, "seconds": 1.5, "loss.alpha": 4.5, "accuracy.alpha": 0.5, "loss_ema.alpha": 5.0}
TEST = {"accuracy": 0.9, "accuracy_std": 0.1, "tar_at_far_1e-3": 0.5, "tar_at_far_1e-4": 0.25, "auc": 0.9, "pairs": 9.0}
SECRET = "/private/celeba/Jane_Doe/0001.jpg"


@pytest.fixture
def gates(tmp_path):
    log = tmp_path / "silo" / "privacy.jsonl"
    return {role: Gate(role, log, private_errors=True, sets=("alpha",)) for role in ("trainer", "validator")}


def asked(kind="train", arrays=None, **scalars):
    sent = {"model": MODEL, "counters": COUNTERS} if arrays is None else arrays
    message = Message(to_records(Serialiser()(sent), {"party": "alpha", **scalars}), 7, kind)
    message.metadata.__dict__["_run_id"] = 11
    return message


def answered(message, arrays=None, metrics=None, records=()):
    content = {"metrics": MetricRecord(FIGURES if metrics is None else metrics)}
    if arrays:
        content["arrays"] = ArrayRecord(
            {name: array if isinstance(array, Array) else serialise(array) for name, array in arrays.items()}
        )
    return Message(RecordDict({**content, **dict(records)}), reply_to=message)


def log_of(gate):
    return [json.loads(line) for line in gate.log_file.read_text().splitlines()]


TRAINED = [
    ({"model": MODEL, "counters": COUNTERS}, FIGURES),
    ({"difference": DIFFERENCE, "statistics": STATISTICS, "counters": COUNTERS}, {**FIGURES, "scale": 1.0}),
    ({"difference": DIFFERENCE.astype(np.float16), "statistics": STATISTICS, "counters": COUNTERS}, FIGURES),
    ({"difference": DIFFERENCE.astype(np.uint16), "statistics": STATISTICS, "counters": COUNTERS}, FIGURES),
    ({}, {"images": 0, "needs_model": 1}),
]


@pytest.mark.parametrize(("arrays", "metrics"), TRAINED, ids=["model", "float32", "float16", "bfloat16", "needs-model"])
def test_a_trainer_sends_its_backbone_and_figures_and_both_are_written_down(gates, arrays, metrics):
    message = asked(round=3)
    reply = answered(message, arrays, metrics)
    assert gates["trainer"].release(message, reply) is reply
    (line,) = log_of(gates["trainer"])
    assert gates["trainer"].log_file.stat().st_mode & 0o777 == 0o600
    assert line.pop("time") > 1e9
    assert line == {
        "run": 11,
        "kind": "train",
        "round": 3,
        "arrays": [
            {"name": name, "dtype": str(a.dtype), "shape": list(a.shape), "bytes": 128 + a.nbytes}
            for name, a in arrays.items()
        ],
        "scalars": metrics,
    }


@pytest.mark.parametrize("metrics", [{"score": 61.25, "seconds": 0.5}, {**TEST, "seconds": 0.5}])
def test_a_validator_sends_figures_alone(gates, metrics):
    message = asked("evaluate", number=4)
    reply = answered(message, metrics=metrics)
    assert gates["validator"].release(message, reply) is reply
    (line,) = log_of(gates["validator"])
    del line["time"]
    assert line == {"run": 11, "kind": "evaluate", "round": 4, "arrays": [], "scalars": metrics}


@pytest.mark.parametrize("role", ["trainer", "validator"])
def test_both_say_who_they_are_and_how_much_they_own(gates, role):
    prepare, query = asked(f"query.{PREPARE}", {}), asked(f"query.{QUERY}", {})
    for message, reply in (
        (prepare, answered(prepare, metrics={"samples": 24})),
        (query, properties_reply(query, {"alpha": role})),
    ):
        assert gates[role].release(message, reply) is reply
    one, two = log_of(gates[role])
    assert (one["kind"], one["scalars"]) == ("query.prepare", {"samples": 24})
    assert (two["kind"], two["properties"]) == ("query.properties", {"parties": ["alpha"], "roles": [role]})


def test_figures_of_differences_go_out_for_a_difference_as_well(gates):
    sent = {"difference": DIFFERENCE, "statistics": STATISTICS, "counters": COUNTERS}
    message = asked("train", sent)
    reply = answered(message, sent)
    assert gates["trainer"].release(message, reply) is reply


HEAD = np.ones((3, 2), np.float32)
KEPT = {"model": MODEL, "counters": COUNTERS}
CHANGED = {"difference": DIFFERENCE, "statistics": STATISTICS, "counters": COUNTERS}


def posing(array, as_array):
    """Return an array that says of itself that it is another."""
    return Array(str(as_array.dtype), as_array.shape, "numpy.ndarray", serialise(array).data)


def trailing(array, more):
    """Return an array behind whose numbers more is hidden."""
    return Array(str(array.dtype), array.shape, "numpy.ndarray", serialise(array).data + more)


@pytest.mark.parametrize(
    ("role", "kind", "arrays", "metrics", "records"),
    [
        ("trainer", "train", {**KEPT, "head": HEAD}, FIGURES, {}),
        ("trainer", "train", {"head": HEAD}, FIGURES, {}),
        ("trainer", "train", {"model": HEAD, "counters": COUNTERS}, FIGURES, {}),
        ("trainer", "train", {"model": MODEL.reshape(2, 3), "counters": COUNTERS}, FIGURES, {}),
        ("trainer", "train", {"model": MODEL.astype(np.float64), "counters": COUNTERS}, FIGURES, {}),
        ("trainer", "train", {"model": np.tile(MODEL, 2), "counters": COUNTERS}, FIGURES, {}),
        ("trainer", "train", {"model": MODEL[:1], "counters": COUNTERS}, FIGURES, {}),
        ("trainer", "train", {"model": MODEL, "counters": np.arange(2)}, FIGURES, {}),
        ("trainer", "train", {"model": MODEL, "counters": MODEL}, FIGURES, {}),
        ("trainer", "train", {"model": MODEL}, FIGURES, {}),
        ("trainer", "train", {**CHANGED, "statistics": MODEL}, FIGURES, {}),
        ("trainer", "train", {**CHANGED, "difference": DIFFERENCE.astype(np.int32)}, FIGURES, {}),
        ("trainer", "train", {**CHANGED, "difference": DIFFERENCE.astype(np.uint8)}, FIGURES, {}),
        ("trainer", "train", {"model": posing(HEAD, MODEL), "counters": COUNTERS}, FIGURES, {}),
        ("trainer", "train", {"model": trailing(MODEL, b"head" * 99), "counters": COUNTERS}, FIGURES, {}),
        ("trainer", "train", KEPT, {**FIGURES, "head": 0.5}, {}),
        ("trainer", "train", KEPT, {**FIGURES, "loss.alpha": [4.5, 4.0]}, {}),
        ("trainer", "train", KEPT, {**FIGURES, "loss.celeba/Jane Doe": 4.5}, {}),
        ("trainer", "train", KEPT, {**FIGURES, "score": 60.0}, {}),
        ("trainer", "train", KEPT, FIGURES, {"head": ArrayRecord()}),
        ("trainer", "train", KEPT, FIGURES, {"config": ConfigRecord({"labels": [1, 2]})}),
        ("trainer", "train", {}, FIGURES, {"arrays": ConfigRecord({"head": b"bytes"})}),
        ("trainer", "train", {}, FIGURES, {"metrics": ConfigRecord({"labels": ["Jane Doe"]})}),
        ("trainer", f"query.{PREPARE}", {}, {"samples": 24, "identities": 6}, {}),
        ("trainer", f"query.{PREPARE}", KEPT, {"samples": 24}, {}),
        ("trainer", f"query.{PREPARE}", {}, {"samples": [24, 25]}, {}),
        ("trainer", f"query.{QUERY}", {}, {"samples": 24}, {}),
        ("validator", "evaluate", KEPT, {"score": 60.0}, {}),
        ("validator", "evaluate", {}, {"score": [60.0, 61.0]}, {}),
        ("validator", "evaluate", {}, {"score": 60.0, "distances": 0.5}, {}),
        ("validator", "evaluate", {}, {"loss.alpha": 4.5}, {}),
        ("validator", "evaluate", {}, {"score": 60.0}, {"config": ConfigRecord({"pairs": [1]})}),
    ],
)
def test_everything_else_stays_on_the_silo_and_is_written_down_as_refused(gates, role, kind, arrays, metrics, records):
    message = asked(kind)
    out = gates[role].release(message, answered(message, arrays, metrics, records))
    assert out.has_error()
    (line,) = log_of(gates[role])
    assert line.pop("time") > 1e9
    assert line == {"run": 11, "kind": kind, "round": 0, "error": out.error.reason}
    # Not even by the refusal.
    assert not any(word in out.error.reason for word in ("Jane", "head", "labels", "60.0"))


@pytest.mark.parametrize(
    "record",
    [
        ConfigRecord({"parties": ["alpha"], "roles": ["trainer"], "labels": ["Jane Doe"]}),
        ConfigRecord({"parties": ["alpha"], "roles": ["Jane Doe"]}),
        ConfigRecord({"parties": ["alpha"]}),
        ConfigRecord({}),
        ArrayRecord({"head": serialise(HEAD)}),
        MetricRecord({"distances": [0.5, 0.25]}),
    ],
)
def test_the_query_for_properties_carries_nothing_else(gates, record):
    message = asked(f"query.{QUERY}", {})
    out = gates["trainer"].release(message, Message(RecordDict({"properties": record}), reply_to=message))
    assert out.has_error()
    assert "error" in log_of(gates["trainer"])[0]


@pytest.mark.parametrize(
    ("role", "kind"),
    [
        ("trainer", "evaluate"),
        ("validator", "train"),
        ("trainer", "query"),
        ("trainer", "query.head"),
        ("validator", "query.images"),
        ("trainer", "train.head"),
        ("validator", "evaluate.scores"),
    ],
)
def test_a_message_that_is_not_for_the_role_or_of_no_known_kind_gets_nothing(gates, role, kind):
    message = asked(kind)
    for metrics in (FIGURES, {"score": 60.0, "seconds": 1.0}, {"samples": 24}):
        assert gates[role].release(message, answered(message, metrics=metrics)).has_error()


def test_without_a_party_no_data_goes_out():
    gate, message = Gate("", None, private_errors=False), asked()
    out = gate.release(message, answered(message, {"model": MODEL, "counters": COUNTERS}))
    assert out.error.reason == "a message that is for no party of this silo"


@pytest.mark.parametrize(
    "error",
    [
        DataError(f"{SECRET}: not a JPEG"),
        StateError(f"{SECRET}: cannot be read"),
        KeyError(SECRET),
        ValueError(f"label {SECRET}"),
        OSError(2, "No such file", SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
def test_why_a_silo_failed_stays_in_its_own_log_under_a_reference(gates, caplog, error):
    message = asked(round=2)
    with caplog.at_level(logging.ERROR, "flwr"):
        out = gates["trainer"].refuse(message, error)
    reason = out.error.reason
    assert reason.startswith(f"{type(error).__name__}; the silo's own log has the reason under ")
    assert "private" not in reason
    assert "Jane" not in reason
    reference = reason.split()[-1]
    assert any(reference in line and SECRET in line for line in caplog.messages)
    (line,) = log_of(gates["trainer"])
    assert (line["error"], line["round"]) == (reason, 2)


@pytest.mark.parametrize(
    "error", [ProtocolError("round 3 after round 5"), TrainingError("alpha: lower optimizer.rate")]
)
def test_what_is_about_the_message_or_the_step_is_told(gates, error):
    assert gates["trainer"].refuse(asked(), error).error.reason == str(error)


def test_in_a_simulation_every_reason_is_told(gates, tmp_path):
    gate = replace(gates["trainer"], private_errors=False)
    assert gate.refuse(asked(), DataError(f"{SECRET}: not a JPEG")).error.reason == f"{SECRET}: not a JPEG"
    assert gate.refuse(asked(), KeyError("x")).error.reason == "KeyError: 'x'"


def test_what_cannot_be_written_down_does_not_go_out(tmp_path):
    (tmp_path / "file").write_text("where the silo's folder should be")
    gate, message = Gate("trainer", tmp_path / "file" / "privacy.jsonl", private_errors=True, sets=("alpha",)), asked()
    for out in (
        gate.release(message, answered(message, {"model": MODEL, "counters": COUNTERS})),
        gate.refuse(message, ProtocolError("something about the message")),
    ):
        assert out.error.reason == "the silo cannot write its privacy log, and sends nothing until it can"


# Through the whole app, as a deployed node runs it.


def ask_node(config, node, kind, scalars):
    message = Message(to_records({}, scalars), 7, kind)
    context = Context(1, 7, node, RecordDict(), {"config": config.to_json(), "overrides": ""})
    return app(message, context)


@pytest.fixture
def layout(tmp_path):
    config = tiny_config(tmp_path, "fedface")
    return FlatModel(build_backbone(config.model)).layout


def test_a_node_whose_data_are_missing_does_not_tell_where(tmp_path, layout):
    config = tiny_config(tmp_path / "run", "fedface")
    node = deployed_node(tmp_path, "alpha", "trainer", data=str(tmp_path / "Jane_Doe"))
    out = ask_node(config, node, f"query.{PREPARE}", write_request("alpha", "first", layout))
    assert out.error.reason.startswith("DataError; the silo's own log has the reason under ")
    own_log = (tmp_path / "alpha" / "privacy.jsonl").read_text()
    assert json.loads(own_log)["error"] == out.error.reason


def test_a_node_that_is_started_badly_tells_nobody_what_is_in_its_policy(tmp_path, layout):
    config = tiny_config(tmp_path / "run", "fedface")
    (tmp_path / "alpha").mkdir()
    (tmp_path / "alpha" / "policy.toml").write_text("Jane_Doe = 3")
    node = deployed_node(tmp_path, "alpha", "trainer")
    for kind in (f"query.{QUERY}", f"query.{PREPARE}", "train"):
        out = ask_node(config, node, kind, write_request("alpha", "first", layout))
        assert out.error.reason.startswith("ConfigError; the silo's own log has the reason under ")


def test_a_node_answers_no_kind_of_message_that_it_does_not_know(tmp_path, layout):
    config = tiny_config(tmp_path / "run", "fedface")
    node = deployed_node(tmp_path, "alpha", "trainer")
    for kind in ("query", "query.head", "train.head", "evaluate.images", "evaluate"):
        out = ask_node(config, node, kind, write_request("alpha", "first", layout))
        assert out.has_error()
    lines = [json.loads(line) for line in (tmp_path / "alpha" / "privacy.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["query", "query.head", "train.head", "evaluate.images", "evaluate"]
    assert all("arrays" not in line and "error" in line for line in lines)


def test_a_run_with_more_rounds_than_agreed_gets_no_answer_at_all(tmp_path, layout):
    config = tiny_config(tmp_path / "run", "fedface", "training.rounds=9")
    (tmp_path / "alpha").mkdir()
    (tmp_path / "alpha" / "policy.toml").write_text("max_rounds = 8\nmin_images = 1")
    out = ask_node(
        config,
        deployed_node(tmp_path, "alpha", "trainer"),
        f"query.{PREPARE}",
        write_request("alpha", "first", layout),
    )
    assert out.error.reason == "training.rounds=9: above the 8 that alpha has agreed to"
