# SPDX-License-Identifier: Apache-2.0
"""An event in one short line for a person who watches the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedface_flwr.reporting.metrics import Event
from fedface_flwr.reporting.summary import tar_and_doubt
from fedface_flwr.wording import numbered


def describe(event: Event, rounds: int) -> str | None:
    """Describe `event` in one line, or return None where there is nothing to say.

    Parameters
    ----------
    event
        An event as in `reporting.metrics`.
    rounds
        The number of training rounds that the run will have.
    """
    match event["event"]:
        case "start":
            return _start(event)
        case "round":
            return _round(event, rounds)
        case "validation":
            return _validation(event)
        case "test":
            return _test(event)
        case "warning":
            return f"warning: {event['message']}"
        case "resume":
            return f"resumed after round {event['round']}"
        case "end":
            return f"finished in {event['seconds'] / 60:.1f} min"
    return None


def number(value: float | None, digits: int) -> str:
    """Format `value` with `digits` decimals; None, a figure that was not finite, as a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Format a fraction in 0..1 as a percentage; None as a dash."""
    return "–" if fraction is None else f"{100 * fraction:.{digits}f}%"


def shown_tar(figures: Mapping[str, Any], far: float) -> str:
    """Format a pack's TAR at a FAR of 1e-3 or 1e-4, with the doubt that its few pairs leave."""
    rate, note = tar_and_doubt(figures, far)
    doubt = note.partition(":")[0]
    return doubt or "–" if rate is None else percent(rate) + (f" ({doubt})" if doubt else "")


def _start(event: Event) -> str:
    who = f"trainers {' '.join(event['trainers'])}"
    if event["validators"]:
        who += f", validators {' '.join(event['validators'])}"
    plan = f"{numbered(event['rounds'], 'round')} of {numbered(event['steps_per_round'], 'step')}"
    return f"{event['method']}, seed {event['seed']}: {plan}, {who}"


def _round(event: Event, rounds: int) -> str:
    losses = " ".join(f"{silo} {number(figures['loss'], 2)}" for silo, figures in event["silos"].items())
    parts = [f"round {event['round']:{len(str(rounds))}d}/{rounds}", f"loss {losses}"]
    if event["weights"]:
        parts.append("w " + "/".join(number(weight, 2) for weight in event["weights"].values()))
    parts.append(f"{sum(event['seconds'].values()):.1f} s")
    slowest = max(event["silos"], key=lambda silo: event["silos"][silo]["seconds"])
    if len(event["silos"]) > 1:
        parts.append(f"slowest {slowest} {event['silos'][slowest]['seconds']:.1f} s")
    if event["missing"]:
        parts.append(f"missing {' '.join(event['missing'])}")
    if event.get("rejected"):
        parts.append(f"rejected {' '.join(event['rejected'])}")
    return "  ".join(parts)


def _validation(event: Event) -> str:
    best = event["best"]
    scores = " ".join(f"{name} {number(of[best], 1)}%" for name, of in event["scores"].items())
    return f"validation {event['validation']}  {scores}  best {best + 1} of {len(event['candidates'])}"


def _test(event: Event) -> str:
    accuracy = f"{percent(event['accuracy'])} ± {percent(event['accuracy_std'])}"
    tar = shown_tar(event, 1e-3)
    return f"test {event['pack']} ({event['model']} model)  accuracy {accuracy}  TAR at FAR 1e-3 {tar}"
