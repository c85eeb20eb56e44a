# SPDX-License-Identifier: Apache-2.0
"""How much memory the server's loop takes at its peak, in models, with 12 silos of IR-18 and two validators.

The grid's other end makes up replies of the contract as they are pulled, each with bytes of its own as from a network,
so that what is measured is the server's side alone: messages that are out or in hand, local models, global model,
momentum, candidates. Flower's own transport and the silos are not in it.

    python benchmarks/server_memory.py [--silos 12] [--rounds 4]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from clients.adapter import ARRAYS, CONFIG, METRICS, PROPERTIES, serialise
from fedface_flwr.compose import compose_config
from fedface_flwr.config import Config
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from strategies import STRATEGIES
from strategies.checkpoints import FileCheckpoints

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


class MadeUpGrid(Grid):
    """Answers every message at once, with differences or models of the right size."""

    def __init__(self, config: Config, layout: Any) -> None:
        self._config, self._layout = config, layout
        self._asked: dict[str, Message] = {}

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=1000 + i) for i in range(len(self._config.parties))]

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            # As over a network, the content is gone from this side once it is sent.
            config = message.content.config_records[CONFIG]
            slim = Message(RecordDict({CONFIG: config}), message.metadata.dst_node_id, message.metadata.message_type)
            slim.metadata.__dict__["_message_id"] = message.metadata.message_id
            self._asked[message.metadata.message_id] = slim
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        # One at a time, as each would arrive when its silo is ready.
        first = next(iter(message_ids), None)
        return [] if first is None else [self._reply(self._asked.pop(first))]

    def _reply(self, asked: Message) -> Message:
        kind, config = asked.metadata.message_type, asked.content.config_records[CONFIG]
        party = self._config.parties[asked.metadata.dst_node_id - 1000]
        if kind == "query.properties":
            record = ConfigRecord({"parties": [party], "roles": [self._config.roles[party]]})
            return Message(RecordDict({PROPERTIES: record}), reply_to=asked)
        if kind == "query.prepare":
            return Message(RecordDict({METRICS: MetricRecord({"samples": 100})}), reply_to=asked)
        if kind == "evaluate":
            return Message(RecordDict({METRICS: MetricRecord({"score": 60.0, "seconds": 0.1})}), reply_to=asked)
        figures = {f"{figure}.{party}": 1.0 for figure in ("loss", "accuracy", "loss_ema")}
        scalars: dict[str, Any] = {"images": 100, "seconds": 0.1, **figures}
        arrays, layout = {}, self._layout
        if self._config.wire.differences:
            scalars["scale"] = 1.0
            small = np.full(layout.num_parameters, 0x3A00 + int(config["round"]), np.uint16)
            arrays["difference"] = serialise(small)
            arrays["statistics"] = serialise(np.ones(layout.num_values - layout.num_parameters, np.float32))
        else:
            arrays["model"] = serialise(np.full(layout.num_values, 0.01, np.float32))
        arrays["counters"] = serialise(np.ones(layout.num_counters, np.int64))
        records: dict[str, Array] = arrays
        return Message(RecordDict({ARRAYS: ArrayRecord(records), METRICS: MetricRecord(scalars)}), reply_to=asked)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError


def status(name: str) -> int:
    """Return a figure of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main() -> None:
    """Run the loop and print its peak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--wire", choices=("differences", "weights"), default="differences")
    options = parser.parse_args()
    silos = ",".join(f"silo{i}" for i in range(options.silos))
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"data.silos=[{silos}]", "model=ir18", "strategy=fedface", "fv.mode=sync", "fv.every=1"]
        overrides += [f"wire={options.wire}", f"training.rounds={options.rounds}", "data.tests=[]"]
        config = compose_config([*overrides, "federation.poll=0.001"], {"run.dir": folder})
        model = FlatModel(build_backbone(config.model))
        layout, state = model.layout, model.state()
        size = 4 * layout.num_values
        loop = STRATEGIES["fedface"](config, "first", layout, state, lambda event: None)
        loop.checkpoints = FileCheckpoints(Path(folder, "state.safetensors"), dict)
        # The loop's own first copies are in what it is charged for; the module and its state, which made them, are not.
        before = status("VmRSS") - size
        Path("/proc/self/clear_refs").write_text("5")
        loop.start(MadeUpGrid(config, layout))
        peak = status("VmHWM") - before
    print(
        f"{options.wire}: peak of the loop with {options.silos} silos: {peak / size:.1f} models "
        f"(at most {options.silos + 6})"
    )
    sys.exit(0)


if __name__ == "__main__":
    main()
