# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedface_flwr.training.schedule import StepSchedule


def drops(rounds: int, milestones: tuple[float, ...]) -> list[int]:
    """Return the rounds whose rate differs from the round before."""
    schedule = StepSchedule(1.0, milestones, 0.1, rounds)
    return [r for r in range(2, rounds + 1) if schedule(r) != schedule(r - 1)]


def test_the_papers_schedule() -> None:
    # 26 epochs of 12,800 steps at K = 100: 128 rounds an epoch, drops at the end of epochs 10, 18 and 24.
    schedule = StepSchedule(0.1, (10 / 26, 18 / 26, 24 / 26), 0.1, 26 * 128)
    ends = [10 * 128, 18 * 128, 24 * 128]
    assert drops(26 * 128, (10 / 26, 18 / 26, 24 / 26)) == [end + 1 for end in ends]
    rates = [schedule(r) for end in ends for r in (end, end + 1)]
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001, 0.001, 0.0001], rel=1e-12)


@pytest.mark.parametrize(
    ("rounds", "milestone", "first"),
    # The first round r with (r - 1) / rounds >= milestone, worked by hand.
    [
        (10, 0.5, 6),
        (10, 0.51, 7),
        (10, 0.59, 7),
        (10, 0.6, 7),
        (42, 0.5, 22),
        (42, 0.75, 33),
        (42, 0.92, 40),
        (3, 0.99, 4),
    ],
)
def test_a_drop_takes_effect_with_the_first_round_that_begins_at_or_after_it(
    rounds: int, milestone: float, first: int
) -> None:
    assert drops(rounds, (milestone,)) == [r for r in [first] if r <= rounds]


@pytest.mark.parametrize(("rounds", "milestone"), [(100, 0.55), (100, 0.07), (100, 0.56), (100, 0.29)])
def test_rounding_of_the_product_does_not_delay_a_drop(rounds: int, milestone: float) -> None:
    assert drops(rounds, (milestone,)) == [round(milestone * rounds) + 1]


def test_two_milestones_inside_one_round_both_apply() -> None:
    schedule = StepSchedule(1.0, (0.55, 0.6), 0.5, 4)
    assert [schedule(r) for r in (1, 2, 3, 4)] == [1, 1, 1, 0.25]


def test_without_milestones_the_rate_is_constant() -> None:
    schedule = StepSchedule(0.3, (), 0.1, 5)
    assert {schedule(r) for r in range(1, 6)} == {0.3}


@given(st.integers(1, 200), st.lists(st.floats(0.01, 0.99), max_size=4, unique=True).map(sorted))
def test_the_rate_starts_full_never_rises_and_counts_milestones(rounds: int, milestones: list[float]) -> None:
    schedule = StepSchedule(1.0, tuple(milestones), 0.5, rounds)
    rates = [schedule(r) for r in range(1, rounds + 1)]
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert schedule(rounds + 1) == 0.5 ** len(milestones)
