# SPDX-License-Identifier: Apache-2.0
"""A ServerApp that asks silos for their heads, images, embeddings and single scores, in every way that Flower has."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

from clients.adapter import serialise
from clients.contract import write_evaluate, write_request, write_train
from fedface_flwr.config import Config, from_json
from fedface_flwr.federation.difference import FullModel
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from fedface_flwr.training.tasks import TrainOrder

server = ServerApp()

Question = tuple[str, str, str, dict[str, Array], dict[str, Any], dict[str, Any]]
"""Its name, the party, the kind of message, arrays, configuration, further records."""


def questions(config: Config, trainer: str, validator: str) -> Iterator[Question]:
    """Yield what a silo must refuse, and at the end what it must answer once more as if nothing had been."""
    model = FlatModel(build_backbone(config.model))
    layout, state = model.layout, model.state()
    order = TrainOrder(1, 0.1, 0, 0, FullModel("v1", state))
    content, train = write_train(trainer, "first", layout, order)
    arrays = {name: serialise(array) for name, array in content.items()}
    backbone = {name: arrays[name] for name in ("model", "counters")}
    _, score = write_evaluate(validator, "first", layout, "validation", 1, state)
    for action in ("head", "images", "embeddings", "scores", "state", "privacy"):
        yield f"query {action}", trainer, f"query.{action}", {}, write_request(trainer, "first", layout), {}
        yield f"query {action}", validator, f"query.{action}", {}, write_request(validator, "first", layout), {}
        yield f"train {action}", trainer, f"train.{action}", backbone, train, {}
        yield f"evaluate {action}", validator, f"evaluate.{action}", backbone, score, {}
    yield "trainer evaluates", trainer, "evaluate", backbone, {**score, "party": trainer}, {}
    yield "validator trains", validator, "train", backbone, {**train, "party": validator}, {}
    for key, value in {"return": "head", "include_head": True, "collect": ["images"]}.items():
        yield f"train field {key}", trainer, "train", backbone, {**train, key: value}, {}
        yield f"evaluate field {key}", validator, "evaluate", backbone, {**score, key: value}, {}
    for purpose in ("scores", "embeddings", "per-image", ""):
        yield f"purpose {purpose}", validator, "evaluate", backbone, {**score, "purpose": purpose}, {}
    yield "pairs of one image", validator, "evaluate", backbone, {**score, "pairs": 1}, {}
    yield "another layout", trainer, "train", backbone, {**train, "layout": "head"}, {}
    long = {**backbone, "head": serialise(np.zeros(10, np.float32))}
    yield "an array more", validator, "evaluate", long, score, {}
    short = {**backbone, "model": serialise(state.values[:-1].copy())}
    yield "an array too short", trainer, "train", short, train, {}
    endless = {**train, "rate": float("inf")}
    yield "an endless rate", trainer, "train", backbone, endless, {}
    yield "a round too many", trainer, "train", backbone, {**train, "round": 10**6}, {}
    yield "a round that is no number", trainer, "train", backbone, {**train, "round": "../../head"}, {}
    yield "a state of another round", trainer, "train", backbone, {**train, "round": 3, "previous": 2}, {}
    yield "another half", trainer, "train", backbone, {**train, "half": "../.."}, {}
    for party in ("../..", "/etc/passwd", validator):
        yield f"party {party}", trainer, "train", backbone, {**train, "party": party}, {}
    extra = {"metrics": MetricRecord({"head": 1}), "more": ConfigRecord({"path": "/etc/passwd"})}
    yield "further records", trainer, "train", backbone, train, extra
    broken = Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=b"no array")
    yield "broken bytes", trainer, "train", {**backbone, "model": broken}, train, {}
    pickled = Array(dtype="float32", shape=(3,), stype="pickle", data=b"cos\nsystem\n(S'true'\ntR.")
    yield "a pickle", trainer, "train", {**backbone, "model": pickled}, train, {}
    yield "nothing", trainer, "train", {}, {}, {}
    for number in range(10):
        other = {**backbone, "model": serialise(state.values * np.float32(1 + number / 1000))}
        yield f"candidate {number} of one round", validator, "evaluate", other, score, {}
    yield "an honest round", trainer, "train", backbone, train, {}


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Ask, and write down what came back."""
    config = from_json(str(context.run_config["config"]))
    trainer, validator = config.trainers[0], config.data.scorers[0]
    nodes: dict[str, int] = {}
    while set(nodes) < {trainer, validator}:
        nodes = {node.name: node.node_id for node in grid.get_nodes()}  # type: ignore[attr-defined]
        time.sleep(0.2)
    outcomes: dict[int, dict[str, Any]] = {}
    waiting: dict[str, int] = {}
    asked = [q for q in questions(config, trainer, validator) if str(context.run_config["only"]) in q[0]]
    for at, (name, party, kind, arrays, scalars, extra) in enumerate(asked):
        content = RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord(scalars), **extra})
        outcomes[at] = {"question": name, "party": party}
        try:
            (number,) = grid.push_messages([Message(content, nodes[party], kind, ttl=600)])
            waiting[number] = at
        except Exception as error:
            outcomes[at]["unsent"] = type(error).__name__
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            outcomes[waiting.pop(reply.metadata.reply_to_message_id)] |= _told(reply)
        time.sleep(0.2)
    out = Path(str(context.run_config["out"]))
    out.with_suffix(".tmp").write_text(json.dumps(list(outcomes.values())))
    out.with_suffix(".tmp").rename(out)


def _told(reply: Message) -> dict[str, Any]:
    if reply.has_error():
        return {"refused": reply.error.reason}
    content = reply.content
    arrays = {n: list(a.shape) for record in content.array_records.values() for n, a in record.items()}
    scalars = {n: v for record in content.metric_records.values() for n, v in record.items()}
    return {"arrays": arrays, "scalars": scalars}
