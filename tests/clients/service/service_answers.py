# SPDX-License-Identifier: Apache-2.0
"""What a silo service answers in these tests: no training, but every way in which an answer can come or fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from clients.exchange import Answer, Request
from clients.node import Node
from fedface_flwr.errors import StateError


def answer(request: Request, node: Node) -> Answer:
    """Do what the scalar ``do`` says; every answer says which process gave it."""
    return ANSWERS[str(request.scalars["do"])](request, node)


def _answer(request: Request, **scalars: int | float | str) -> Answer:
    return Answer(request.arrays, {"pid": os.getpid(), **scalars})


def _echo(request: Request, node: Node) -> Answer:
    views = all(not array.flags.owndata and not array.flags.writeable for array in request.arrays)
    return _answer(request, views=int(views), party=node.party, **request.scalars)


def _fail_plainly(request: Request, node: Node) -> Answer:
    raise StateError("no state of round 7")


def _fail_secretly(request: Request, node: Node) -> Answer:
    raise ValueError("/private/faces/alice.jpg")


def _die(request: Request, node: Node) -> Answer:
    """Die as often as the scalar ``deaths`` says, counted on the silo's disk."""
    marks = node.silo_dir / "deaths"
    marks.mkdir(exist_ok=True)
    done = len(list(marks.iterdir()))
    if done < int(request.scalars["deaths"]):
        (marks / str(done)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _answer(request, deaths=done)


def _wait(request: Request, node: Node) -> Answer:
    """Say that the computation has begun, and go on until the file ``go`` is there."""
    (node.silo_dir / f"begun-{request.scalars['name']}").touch()
    while not (node.silo_dir / "go").exists():
        time.sleep(0.01)
    (node.silo_dir / f"done-{request.scalars['name']}").touch()
    return _answer(request)


def _answer_objects(request: Request, node: Node) -> Answer:
    return Answer([np.array([object()])], {})


def _answer_nan(request: Request, node: Node) -> Answer:
    return Answer([], {"loss": float("nan")})


ANSWERS = {
    "echo": _echo,
    "fail plainly": _fail_plainly,
    "fail secretly": _fail_secretly,
    "die": _die,
    "wait": _wait,
    "objects": _answer_objects,
    "nan": _answer_nan,
    "root": lambda request, node: _answer(request, file=str(Path(__file__))),
}
