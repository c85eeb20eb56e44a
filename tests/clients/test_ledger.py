# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import resource
from contextlib import contextmanager

import numpy as np
import pytest

from clients.ledger import Ledger
from clients.policy import SiloPolicy
from fedface_flwr.errors import DataError, ProtocolError, StateError
from fedface_flwr.evaluation.tasks import EvaluateTask
from fedface_flwr.federation.layout import ModelState

POLICY = SiloPolicy(max_candidates=3, max_tests=2, max_rounds=5)


class Computing:
    """Counts how often it is asked, and gives another answer each time."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return {"score": 60.0 + self.times, "seconds": 0.5}


def task(model, purpose="validation", number=1, half="first", counters=0):
    state = ModelState(np.full(4, model, np.float32), np.array([counters]))
    return EvaluateTask(purpose, half, state, number)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "answers.json"


@contextmanager
def full_disk():
    """Let no file grow beyond some bytes, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_the_same_question_gets_the_same_answer_and_counts_once(path):
    ledger, compute = Ledger(path, POLICY), Computing()
    first = ledger.answer(task(1), compute)
    assert [ledger.answer(task(1), compute) for _ in range(5)] == [first] * 5
    assert compute.times == 1
    for model in (2, 3):
        ledger.answer(task(model), compute)
    with pytest.raises(ProtocolError, match=r"^validation 1: 3 models were agreed to, and have been answered"):
        ledger.answer(task(4), compute)
    # The refusal has not used up what was answered.
    assert ledger.answer(task(1), compute) == first
    assert compute.times == 3


def test_a_new_process_goes_on_where_the_one_before_was(path):
    compute = Computing()
    given = [Ledger(path, POLICY).answer(task(model), compute) for model in (1, 2, 3)]
    with pytest.raises(ProtocolError, match="3 models were agreed to"):
        Ledger(path, POLICY).answer(task(4), compute)
    assert [Ledger(path, POLICY).answer(task(model), compute) for model in (1, 2, 3)] == given
    assert compute.times == 3


def test_two_ledgers_of_one_run_in_one_process_count_together(path):
    """A hostile server sends its run with another configuration each time, so that the silo opens it anew."""
    compute = Computing()
    one, two = Ledger(path, POLICY), Ledger(path, POLICY)
    one.answer(task(1), compute)
    two.answer(task(2), compute)
    one.answer(task(3), compute)
    for ledger in (one, two, Ledger(path, POLICY)):
        with pytest.raises(ProtocolError, match="3 models were agreed to"):
            ledger.answer(task(4), compute)


def test_each_validation_round_and_half_has_its_own_candidates(path):
    ledger, compute = Ledger(path, POLICY), Computing()
    for number in (1, 2):
        for half in ("first", "second"):
            for model in (1, 2, 3):
                ledger.answer(task(model, number=number, half=half), compute)
    assert compute.times == 12


def test_a_model_differs_by_its_last_bit_or_by_its_counters(path):
    ledger, compute = Ledger(path, POLICY), Computing()
    ledger.answer(task(1), compute)
    ledger.answer(task(np.nextafter(np.float32(1), np.float32(2))), compute)
    ledger.answer(task(1, counters=1), compute)
    assert compute.times == 3


def test_tests_are_counted_over_the_whole_run_whatever_their_number(path):
    ledger, compute = Ledger(path, POLICY), Computing()
    first = ledger.answer(task(1, "test", 1), compute)
    assert ledger.answer(task(1, "test", 2), compute) == first
    ledger.answer(task(1, "test", 1, half="second"), compute)
    with pytest.raises(ProtocolError, match=r"^test 3: 2 models were agreed to"):
        ledger.answer(task(2, "test", 3), compute)
    # Scores are another matter.
    ledger.answer(task(1), compute)


@pytest.mark.parametrize("purpose", ["validation", "test"])
def test_no_number_is_above_the_rounds_agreed_to(path, purpose):
    ledger, compute = Ledger(path, POLICY), Computing()
    ledger.answer(task(1, purpose, 5), compute)
    with pytest.raises(ProtocolError, match=f"^{purpose} 6: above the 5 agreed to"):
        ledger.answer(task(2, purpose, 6), compute)


def test_that_a_model_cannot_be_judged_is_an_answer_and_counts_as_one(path):
    def fail():
        calls.append(1)
        raise DataError("not finite")

    calls, compute = [], Computing()
    with pytest.raises(DataError, match="not finite"):
        Ledger(path, POLICY).answer(task(9), fail)
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"^validation 1: this model could not be judged"):
            Ledger(path, POLICY).answer(task(9), fail)
    assert len(calls) == 1
    for model in (1, 2):
        Ledger(path, POLICY).answer(task(model), compute)
    with pytest.raises(ProtocolError, match="3 models were agreed to"):
        Ledger(path, POLICY).answer(task(3), compute)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"tests": 3}', '"text"', "3"])
def test_a_damaged_ledger_is_never_taken_for_an_empty_one(path, text):
    ledger = Ledger(path, POLICY)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(StateError, match=r"answers\.json: not a readable ledger"):
        Ledger(path, POLICY)
    with pytest.raises(StateError, match=r"answers\.json: not a readable ledger"):
        ledger.answer(task(1), Computing())


def test_what_the_disk_does_not_take_is_not_answered_then_or_later(path):
    ledger, compute = Ledger(path, POLICY), Computing()
    first = ledger.answer(task(1), compute)
    before = path.read_bytes()
    with full_disk():
        for _ in range(2):
            with pytest.raises(StateError, match=r"answers\.json: cannot be written .*free some space"):
                ledger.answer(task(2), compute)
        # What is in it may be said.
        assert ledger.answer(task(1), compute) == first
    assert path.read_bytes() == before
    assert len(list(path.parent.iterdir())) == 1
    again = ledger.answer(task(2), compute)
    assert sum(len(known) for known in json.loads(path.read_text()).values()) == 2
    assert Ledger(path, POLICY).answer(task(2), compute) == again
