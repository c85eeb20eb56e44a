# SPDX-License-Identifier: Apache-2.0
"""The learning rate, which is constant inside a round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepSchedule:
    """A rate that drops at fractions of the run.

    A drop takes effect with the first round that begins at or after its fraction, for the server's momentum
    (equation ``M_r = (Theta_{r-1} - Theta_r) / eta_r``) supposes one rate a round.

    Parameters
    ----------
    rate : float
        First rate.
    milestones : tuple of float
        Rising fractions of the run, in (0, 1).
    factor : float
        What each milestone multiplies the rate by.
    rounds : int
        Length of the run in rounds.
    """

    rate: float
    milestones: tuple[float, ...]
    factor: float
    rounds: int

    def __call__(self, number: int) -> float:
        """Return the rate of round ``number``, counted from 1."""
        # Rounding guards against products such as 0.55 * 100 = 55.00000000000001.
        passed = sum(number - 1 >= round(m * self.rounds, 9) for m in self.milestones)
        return self.rate * self.factor**passed
