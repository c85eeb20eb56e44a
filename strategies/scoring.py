# SPDX-License-Identifier: Apache-2.0
"""One round of Federated Validation's scores, as messages."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from flwr.app import Message, MessageType

from clients.adapter import Serialiser, num_bytes, read_reply
from clients.contract import SCORE_FIGURES, needs_model, read_figures, write_evaluate
from fedface_flwr.errors import ProtocolError
from fedface_flwr.federation.difference import AnchoredModel
from fedface_flwr.federation.layout import ModelState
from strategies.anchor import Anchor
from strategies.exchange import Exchange

if TYPE_CHECKING:
    from strategies.round_loop import RoundLoop

Scores = dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Sent:
    """A message that is out: to whom, which candidate, and whether it brings the anchor along."""

    validator: str
    candidate: int
    brings: bool


class ScoringRound:
    """Every validator scores every candidate; each works through them in order, a few messages ahead.

    A validator that does not hold the anchor gets it with one candidate, and no other until that is answered.

    Parameters
    ----------
    loop : RoundLoop
        Whose validators, link and options are used.
    number : int
        The validation round's, from 1.
    candidates : sequence of ModelState or AnchoredModel
        The candidate models as they travel.
    anchor : Anchor or None
        What they are differences from, if they are.
    stop : threading.Event
        Ends the round early.
    """

    def __init__(
        self,
        loop: RoundLoop,
        number: int,
        candidates: Sequence[ModelState] | Sequence[AnchoredModel],
        anchor: Anchor | None,
        stop: threading.Event,
    ) -> None:
        self._loop, self._number, self._candidates, self._anchor, self._stop = loop, number, candidates, anchor, stop
        self._exchange = Exchange(loop.link, loop.config.federation.round_timeout, stop=stop)
        self._serialise = Serialiser()
        self._todo = {name: deque(range(len(candidates))) for name in loop.config.data.scorers}
        self._open: dict[str, Sent] = {}
        self._scores: dict[str, dict[int, float]] = {name: {} for name in self._todo}
        self.bytes_down = 0

    def run(self) -> Scores | None:
        """Return each validator's scores in percent, or None if stopped or none came; one that fails is left out.

        Raises
        ------
        ProtocolError
            If no validator scored all candidates, in the run's first validation round, with each one's reason: later
            ones may be out of reach for a while.
        """
        faults: dict[str, str] = {}
        self._push_more()
        for reply in self._exchange:
            self._take(self._open.pop(reply.metadata.reply_to_message_id), reply, faults)
            self._push_more()
        if self._open and self._stop.is_set():
            return None
        late = f"no score within {self._loop.config.federation.round_timeout:g} s"
        return self._complete({sent.validator: late for sent in self._open.values()} | faults)

    def _push_more(self) -> None:
        """Keep ``federation.depth`` messages with each validator."""
        for name, todo in self._todo.items():
            ahead = sum(out.validator == name for out in self._open.values())
            brings = self._anchor is not None and not self._anchor.held_by(name)
            depth = 1 if brings else self._loop.config.federation.depth
            for _ in range(min(len(todo), depth - ahead)):
                self._push(Sent(name, todo.popleft(), brings))

    def _push(self, sent: Sent) -> None:
        model = self._candidates[sent.candidate]
        if sent.brings and self._anchor is not None and isinstance(model, AnchoredModel):
            model = self._anchor.with_anchor(model)
        loop = self._loop
        arrays, scalars = write_evaluate(sent.validator, loop.half, loop.layout, "validation", self._number, model)
        kind, group = MessageType.EVALUATE, f"candidate-{sent.candidate}"
        message = loop.link.message(sent.validator, kind, self._serialise(arrays), scalars, group)
        self.bytes_down += num_bytes(message.content)
        self._open[self._exchange.add(message)] = sent

    def _take(self, sent: Sent, reply: Message, faults: dict[str, str]) -> None:
        name = sent.validator
        try:
            arrays, scalars = read_reply(reply)
            wants = self._anchor is not None and not sent.brings and needs_model(arrays, scalars)
            if self._anchor is not None:
                self._anchor.note(name, not wants)
            if wants:
                self._todo[name].appendleft(sent.candidate)
            else:
                self._scores[name][sent.candidate] = read_figures(scalars, SCORE_FIGURES)["score"]
        except ProtocolError as error:
            faults[name] = str(error)
            self._todo[name].clear()

    def _complete(self, faults: Mapping[str, str]) -> Scores | None:
        count = len(self._candidates)
        scores = {
            name: np.array([given[t] for t in range(count)])
            for name, given in self._scores.items()
            if name not in faults and len(given) == count
        }
        reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(faults.items()))
        if not scores and self._number == 1:
            raise ProtocolError(f"no validator scored the candidates ({reasons})")
        if faults:
            what = "goes on without" if scores else "is left out for want of"
            self._loop.emit({"event": "warning", "message": f"validation {self._number} {what} {reasons}"})
        return scores or None
