# SPDX-License-Identifier: Apache-2.0
"""Aggregation of IR-18 models, from received messages to the new global model, beside Flower's stock aggregation.

Ours opens and checks each reply, averages, and sets the server's momentum, which stock does not have. Stock's result is
serialised for the next round already; ours is not, so the sum with that is compared as well.
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from flwr.supercore.task_identity import TaskIdentity
from timing import in_turns, ratio

from clients.adapter import ARRAYS, METRICS, Serialiser, read_reply
from clients.contract import BRANCH_FIGURES, model_arrays, read_train_reply
from fedface_flwr.federation.aggregation import aggregate, aggregate_counters, combine
from fedface_flwr.federation.layout import Layout, ModelState
from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.training.flat import FlatModel
from fedface_flwr.training.tasks import TrainResult

SET, RATE, CANDIDATES = "celeba", 0.1, 3
MODEL_BYTES = 4 * 24_020_352

# Flower makes messages only where it has started a task; here there is none.
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def make_reply(arrays: Mapping[str, npt.NDArray[Any]], images: int) -> Message:
    """Return a trainer's reply as the server's strategy gets it, the figures of its round included."""
    figures = {f"{figure}.{SET}": 1.0 for figure in BRANCH_FIGURES}
    content = RecordDict()
    content[ARRAYS] = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})
    content[METRICS] = MetricRecord({"images": images, "seconds": 1.0, **figures})
    return Message(content, dst_node_id=1, message_type=MessageType.TRAIN)


class Server:
    """Our side: the global model, its momentum, and what the strategies do with a round's replies."""

    def __init__(self, layout: Layout, first: ModelState, replies: Sequence[Message]) -> None:
        self.layout, self.model, self.replies = layout, first, replies
        self.momentum = np.zeros(layout.num_parameters, np.float32)

    def read(self) -> list[TrainResult]:
        """Open and check the replies."""
        return [read_train_reply(*read_reply(reply), [SET], self.layout) for reply in self.replies]

    def aggregate(self) -> None:
        """Go from the replies to the new model and momentum."""
        results = self.read()
        images = np.array([float(result.num_images) for result in results])
        rows = [result.model.values for result in results]
        aggregate(rows, images / images.sum(), self.model.values, self.momentum, RATE)
        self.model.counters[:] = aggregate_counters([result.model.counters for result in results])

    def serialise(self) -> dict[str, Array]:
        """Return the next round's arrays as messages carry them."""
        return Serialiser()({**model_arrays(self.model), "momentum": self.momentum})


def make_cases(silos: int) -> dict[str, Callable[[], object]]:
    """Return the pieces of work by name; exit with an error unless ours and stock's arrive at the same model."""
    flat = FlatModel(IRBackbone(18))
    first, layout = flat.state(), flat.layout
    whole, layers = [], []
    for i in range(silos):
        model = ModelState(first.values + np.float32(i), first.counters + i)
        whole.append(make_reply(model_arrays(model), 100 + i))
        layers.append(make_reply(model.tensors(layout), 100 + i).content)
    contents = [reply.content for reply in whole]
    server = Server(layout, first, whole)
    server.aggregate()
    stock = aggregate_arrayrecords(contents, "images")["model"].numpy()
    if not np.allclose(stock, server.model.values, rtol=1e-5, atol=1e-5):
        raise SystemExit("our global model differs from stock's")

    rows = [result.model.values for result in server.read()]
    weights = np.random.default_rng(0).dirichlet(np.ones(silos), size=CANDIDATES)
    averages = np.zeros((CANDIDATES, layout.num_values), np.float32)
    return {
        "ours": server.aggregate,
        "reading": server.read,
        "serialising": server.serialise,
        "stock": lambda: aggregate_arrayrecords(contents, "images"),
        "stock by layer": lambda: aggregate_arrayrecords(layers, "images"),
        "averaging": lambda: aggregate(rows, weights[0], server.model.values, server.momentum, RATE),
        "candidates": lambda: combine(rows, weights, averages),
    }


def peak(work: Callable[[], object]) -> float:
    """Return the most that a call holds at a time beyond what was held before it, in models of IR-18."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / MODEL_BYTES
    finally:
        tracemalloc.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    cases = make_cases(arguments.silos)
    times = in_turns(cases, arguments.repeats)
    with_serialising = np.add(times["ours"], times["serialising"]).tolist()
    print(f"IR-18, {arguments.silos} silos, {arguments.repeats} turns: median ratio [middle half]")
    print(f"  stock / ours, the same messages:           {ratio(times['stock'], times['ours'])}")
    print(f"  stock / ours and the next round's arrays:  {ratio(times['stock'], with_serialising)}")
    print(f"  stock by layer / ours:                     {ratio(times['stock by layer'], times['ours'])}")
    print(f"  stock / ours, averaging alone:             {ratio(times['stock'], times['averaging'])}")
    print(f"  reading and checking replies / ours:       {ratio(times['reading'], times['ours'])}")
    print(f"  {CANDIDATES} candidates / averaging once:            {ratio(times['candidates'], times['averaging'])}")
    print("peak memory beyond the messages, the global model and its momentum, in models:")
    for name in ("ours", "serialising", "stock", "stock by layer"):
        print(f"  {name + ':':16}{peak(cases[name]):5.2f}")


if __name__ == "__main__":
    main()
