# SPDX-License-Identifier: Apache-2.0
"""One training round as messages: what each trainer is sent, and who answers with what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING

from flwr.app import Array, Message, MessageType

from clients.adapter import ARRAYS, ReplyError, Serialiser, read_reply
from clients.contract import needs_model, read_train_reply, write_train
from fedface_flwr.errors import ProtocolError
from fedface_flwr.federation.aggregation import norm
from fedface_flwr.training.tasks import TrainOrder, TrainResult

if TYPE_CHECKING:
    from strategies.round_loop import RoundLoop


class TrainingRound:
    """Every trainer trains once; one that does not hold the base of its difference is sent the whole model.

    Parameters
    ----------
    loop : RoundLoop
        Whose trainers, models and options are used.

    Attributes
    ----------
    results : dict of str to TrainResult
        What is taken, by trainer.
    faults : dict of str to str
        Why nothing is taken from each of the others.
    rejected : set of str
        Those of them who answered, but not as they should.
    """

    def __init__(self, loop: RoundLoop) -> None:
        self._loop = loop
        self._serialise = Serialiser()
        self._bytes: dict[str, dict[str, int]] = {trainer: defaultdict(int) for trainer in loop.config.trainers}
        self._resent: set[str] = set()
        silence = f"no answer within {loop.config.federation.round_timeout:g} s"
        self.results: dict[str, TrainResult] = {}
        self.faults = dict.fromkeys(loop.config.trainers, silence)
        self.rejected: set[str] = set()

    def messages(self) -> list[Message]:
        """Return one message a trainer, in their order; what several get is serialised once."""
        return [self._message(trainer) for trainer in self._loop.config.trainers]

    def _message(self, trainer: str, whole: bool = False) -> Message:
        loop = self._loop
        last = loop.last_round[trainer]
        oldest = loop.checkpoints.oldest_round(trainer, last)
        download = loop.download_for(trainer, whole)
        order = TrainOrder(loop.round, loop.schedule(loop.round), last, oldest, download)
        content, scalars = write_train(trainer, loop.half, loop.layout, order)
        arrays = self._serialise(content)
        self._count(trainer, "down", arrays)
        return loop.link.message(trainer, MessageType.TRAIN, arrays, scalars, f"round-{loop.round}")

    def take(self, replies: Iterable[Message], send: Callable[[Message], object]) -> None:
        """Read replies as they come; ``send`` sends another message, whose reply comes with them."""
        for reply in replies:
            trainer = self._loop.link.party_of(reply)
            try:
                result = self._read(trainer, reply)
            except ProtocolError as error:
                self.faults[trainer] = str(error)
                if not isinstance(error, ReplyError):
                    self.rejected.add(trainer)
                continue
            if result is None:
                self._resent.add(trainer)
                send(self._message(trainer, whole=True))
                continue
            self.results[trainer] = result
            self._loop.on_result(trainer, result)
            del self.faults[trainer]
        self._leave_out_outliers()

    def _read(self, trainer: str, reply: Message) -> TrainResult | None:
        """Return a trainer's result, or None if it asks for the whole model, which it does not do twice."""
        loop = self._loop
        arrays, scalars = read_reply(reply)
        self._count(trainer, "up", reply.content.array_records.get(ARRAYS, {}))
        if needs_model(arrays, scalars) and trainer not in self._resent:
            return None
        start = loop.model_for(trainer) if loop.config.sends_differences else None
        sets = loop.config.sets_of(trainer)
        return read_train_reply(arrays, scalars, sets, loop.layout, start, loop.config.wire.dtype)

    def _leave_out_outliers(self) -> None:
        """Take no update that is out of all proportion to the others'; two cannot be told apart."""
        loop = self._loop
        limit = loop.config.federation.max_update_ratio
        if not limit or len(self.results) < 3:
            return
        count = loop.layout.num_parameters
        models = {name: result.model.values for name, result in self.results.items()}
        norms = {name: norm(model, loop.model_for(name).values, count) for name, model in models.items()}
        for name, own in norms.items():
            usual = median(other for trainer, other in norms.items() if trainer != name)
            if own > limit * usual:
                self.faults[name] = f"its update, of norm {own:.3g}, is over {limit:g} times the others' {usual:.3g}"
                self.rejected.add(name)
                del self.results[name]
                loop.on_rejected(name)

    def _count(self, trainer: str, way: str, arrays: Mapping[str, Array]) -> None:
        """Add up a trainer's bytes by way and kind; pooled sets have sent their images instead."""
        if not self._loop.config.strategy.pooled:
            for name, array in arrays.items():
                self._bytes[trainer][f"{way} {name}"] += len(array.data)

    def bytes_of(self, trainer: str, way: str) -> int:
        """Return what a trainer was sent (``down``) or has sent (``up``)."""
        return sum(count for kind, count in self._bytes[trainer].items() if kind.startswith(way))

    def bytes_by_kind(self) -> dict[str, dict[str, int]]:
        """Return the bytes of all trainers by way and array."""
        totals: dict[str, dict[str, int]] = {"down": defaultdict(int), "up": defaultdict(int)}
        for kinds in self._bytes.values():
            for kind, count in kinds.items():
                way, name = kind.split()
                totals[way][name] += count
        return totals
