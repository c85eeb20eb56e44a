# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import numpy as np
import pytest
from grid import PartyGrid, SilenceError, hurry, make_loop, of_kind, party_of, run_loop, tiny_config

from clients.adapter import read_reply, view
from fedface_flwr.errors import ProtocolError
from fedface_flwr.evaluation.evaluator import Evaluator
from fedface_flwr.evaluation.tasks import EvaluateTask
from fedface_flwr.federation.layout import ModelState
from fedface_flwr.federation.validation import LocalNorm, MovingNorm, NoNorm
from strategies.validation import make_norm

TRAINERS = ["alpha", "beta", "gamma"]
# Long enough for a busy machine; a test that gets this far has failed.
PATIENCE = 60


def purpose_of(message):
    return message.content.config_records["config"].get("purpose")


def on_validation(action):
    """Return a hook that calls ``action`` before a candidate is scored."""

    def before(message):
        if purpose_of(message) == "validation":
            action(message)

    return before


def cut(message):
    raise RuntimeError("power cut")


def hush(message):
    raise SilenceError


def validation_threads():
    return [thread for thread in threading.enumerate() if thread.name == "federated-validation"]


def test_sync_validation_follows_every_nth_round_and_moves_w_toward_the_best(tmp_path):
    overrides = ("training.rounds=5", "fv.every=2", "fv.phi=0.25", "fv.candidates=4", "data.tests=[]")
    config = tiny_config(tmp_path, "fedavg_fv", *overrides)
    _, events = run_loop(config)
    order = [event["event"] for event in events[1:]]
    assert order == ["round", "round", "validation", "round", "round", "validation", "round"]
    weights = np.full(3, 1 / 3)
    for event, done in zip(of_kind(events, "validation"), (2, 4), strict=True):
        candidates = np.array(event["candidates"])
        assert (event["round"], event["training_round"]) == (done, 0)
        np.testing.assert_allclose(candidates[0], weights)
        np.testing.assert_allclose(candidates.sum(axis=1), 1)
        assert (candidates >= 0).all()
        assert event["best"] == np.argmax(sum(np.array(s) for s in event["normalised"].values()))
        weights = 0.75 * weights + 0.25 * candidates[event["best"]]
        np.testing.assert_allclose([event["weights"][name] for name in TRAINERS], weights)
        assert sum(event["weights"].values()) == pytest.approx(1)
    # The rounds average by what the validation before them decided.
    rounds = of_kind(events, "round")
    assert rounds[2]["weights"] == rounds[3]["weights"] == of_kind(events, "validation")[0]["weights"]
    assert rounds[4]["weights"] == of_kind(events, "validation")[1]["weights"]


def test_a_score_is_the_validator_s_figure_of_the_average_of_the_local_models(tmp_path):
    config = tiny_config(tmp_path, "fedface", "training.rounds=1", "data.synthetic.pairs=40", "data.tests=[]")
    loop, events = make_loop(config)
    answers = {}

    def keep(message, reply):
        if message.metadata.message_type == "train":
            arrays, _ = read_reply(reply)
            answers[party_of(message)] = ModelState(arrays["model"], arrays["counters"])
        return reply

    with PartyGrid(config) as grid:
        grid.after = dict.fromkeys(TRAINERS, keep)
        loop.start(grid)
    (event,) = of_kind(events, "validation")
    local = np.stack([answers[name].values for name in TRAINERS])
    for validator in ("delta", "epsilon"):
        evaluator = Evaluator(config, validator, tmp_path)
        for message, weights, score in zip(
            grid.messages("evaluate", validator), event["candidates"], event["scores"][validator], strict=True
        ):
            values = view(message.content.array_records["arrays"]["model"])
            np.testing.assert_allclose(values, np.asarray(weights) @ local, rtol=1e-4, atol=1e-6)
            sent = ModelState(values, answers["alpha"].counters)
            assert evaluator.evaluate(EvaluateTask("validation", "first", sent, 1))["score"] == score
    assert event["bytes_down"] == 2 * 3 * (128 + values.nbytes + 128 + 8 * loop.layout.num_counters)


@pytest.mark.parametrize("kind", ["local", "moving", "none"])
def test_norms_are_those_configured(tmp_path, kind):
    config = tiny_config(tmp_path, "fedface", f"fv.norm={kind}", "fv.epsilon=0.5", "fv.gamma=0.25")
    expected = {"local": LocalNorm(0.5), "moving": MovingNorm(0.25, 0.5), "none": NoNorm()}[kind]
    assert make_norm(config.fv) == expected
    _, events = run_loop(config)
    for event in of_kind(events, "validation"):
        for validator, scores in event["scores"].items():
            expected, normalised = expected(validator, np.array(scores))
            np.testing.assert_allclose(event["normalised"][validator], normalised)


def test_async_rounds_do_not_wait_for_a_silent_validator_and_the_thread_ends(tmp_path):
    config = tiny_config(tmp_path, "fedface", "fv.mode=async", "training.rounds=3")
    released = threading.Event()
    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        grid.before["delta"] = on_validation(lambda message: released.wait(PATIENCE))
        loop.start(grid)
        held = not released.is_set()
        released.set()
    assert held
    assert len(of_kind(events, "round")) == 3
    assert len(of_kind(events, "test")) == 2
    assert of_kind(events, "validation") == []
    assert loop.weights_by_name == pytest.approx(dict.fromkeys(TRAINERS, 1 / 3))
    assert validation_threads() == []


def test_async_validation_rounds_repeat_within_one_training_round(tmp_path):
    config = tiny_config(tmp_path, "fedface", "fv.mode=async")
    enough = threading.Event()

    def observe(loop, event):
        if event["event"] == "validation" and event["validation"] == 3:
            enough.set()

    def hold_second_round(message):
        if message.content.config_records["config"].get("round") == 2:
            assert enough.wait(PATIENCE)

    loop, events = make_loop(config, observe)
    with PartyGrid(config) as grid:
        grid.before["alpha"] = hold_second_round
        loop.start(grid)
    order = [event["event"] for event in events]
    one, two = (index for index, kind in enumerate(order) if kind == "round")
    within = of_kind(events[one:two], "validation")
    assert len(within) >= 3
    assert [event["validation"] for event in within] == list(range(1, len(within) + 1))
    assert {event["round"] for event in within} == {1}
    assert within[2]["training_round"] == 2
    # The second round averages by weights that the first three have moved.
    assert events[two]["weights"] != pytest.approx(dict.fromkeys(TRAINERS, 1 / 3))
    assert sum(events[two]["weights"].values()) == pytest.approx(1)
    assert validation_threads() == []


def test_async_validation_ends_with_the_rounds_even_where_a_trainer_ends_the_run(tmp_path):
    config = tiny_config(tmp_path, "fedface", "fv.mode=async")
    loop, _ = make_loop(config)

    def fail_second_round(message):
        if message.content.config_records["config"].get("round") == 2:
            cut(message)

    with PartyGrid(config) as grid:
        grid.before["alpha"] = fail_second_round
        with pytest.raises(ProtocolError, match=r"alpha: .*power cut"):
            loop.start(grid)
        assert validation_threads() == []


def test_async_failure_of_all_validators_ends_the_run_with_the_reasons(tmp_path):
    config = tiny_config(tmp_path, "fedface", "fv.mode=async", "training.rounds=1000")
    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        grid.before = dict.fromkeys(("delta", "epsilon"), on_validation(cut))
        with pytest.raises(ProtocolError, match=r"no validator scored .*\(delta: .*power cut.*; epsilon: .*power cut"):
            loop.start(grid)
    assert len(of_kind(events, "round")) < 1000
    assert validation_threads() == []


def test_a_validator_that_fails_is_left_out_with_a_warning(tmp_path):
    config = tiny_config(tmp_path, "fedface")
    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        grid.before["delta"] = on_validation(cut)
        loop.start(grid)
    warnings, validations = of_kind(events, "warning"), of_kind(events, "validation")
    assert [set(event["scores"]) for event in validations] == [{"epsilon"}, {"epsilon"}]
    assert all(event["message"].split(" ", 2)[2].startswith("goes on without delta: ") for event in warnings)
    assert all("power cut" in event["message"] for event in warnings)
    assert len(warnings) == 2
    # It is not asked for the candidates that would no longer count.
    assert len([m for m in grid.messages("evaluate", "delta") if purpose_of(m) == "validation"]) == 2


def test_a_silent_validator_fails_when_its_time_is_over(tmp_path):
    config = tiny_config(tmp_path, "fedface")
    loop, _ = make_loop(config, lambda loop, event: hurry(loop) if event["event"] == "round" else None)
    with PartyGrid(config) as grid:
        grid.before = dict.fromkeys(("delta", "epsilon"), on_validation(hush))
        complaint = r"delta: no score within 0\.3 s; epsilon: no score within 0\.3 s"
        with pytest.raises(ProtocolError, match=complaint):
            loop.start(grid)


def test_all_validators_failing_ends_a_sync_run_with_the_reasons(tmp_path):
    config = tiny_config(tmp_path, "fedface")
    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        grid.before["delta"] = on_validation(cut)
        grid.after["epsilon"] = lambda message, reply: leak(reply) if purpose_of(message) == "validation" else reply
        complaint = r"no validator scored .*\(delta: .*power cut.*; epsilon: .*unknown \['distance'\]\)"
        with pytest.raises(ProtocolError, match=complaint):
            loop.start(grid)
    assert len(of_kind(events, "round")) == 1


def leak(reply):
    reply.content.metric_records["metrics"]["distance"] = 0.5
    return reply


def test_a_validator_has_as_many_messages_as_configured(tmp_path):
    config = tiny_config(
        tmp_path, "fedface", "training.rounds=1", "federation.depth=2", "fv.candidates=5", "data.tests=[]"
    )
    first_two, third = threading.Semaphore(0), threading.Event()
    waiting = []

    def count(message):
        waiting.append(len(waiting))
        if waiting[-1] < 2:
            first_two.release()
            # Both are under way at once, and the third waits for one of them to be answered.
            assert first_two.acquire(timeout=PATIENCE)
        third.set()

    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        grid.before["delta"] = on_validation(count)
        loop.start(grid)
    assert third.is_set()
    (event,) = of_kind(events, "validation")
    assert len(event["scores"]["delta"]) == 5
