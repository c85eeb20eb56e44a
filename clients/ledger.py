# SPDX-License-Identifier: Apache-2.0
"""What a validator has answered in a run, on its own disk, so that no more is asked of it than was agreed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clients.policy import SiloPolicy
from fedface_flwr.errors import DataError, ProtocolError, StateError
from fedface_flwr.evaluation.tasks import EvaluateTask
from fedface_flwr.federation.run_state import digest_of
from fedface_flwr.files import write_text

Figures = dict[str, float]


class Ledger:
    """Answers by the model and the question; the same question gets the same answer and counts once.

    A lost reply, or a run that goes on from its checkpoint, may thus ask again, and learns nothing new by it.

    Parameters
    ----------
    path : Path
        The ledger's file, of one run.
    policy : SiloPolicy
        How much is answered.

    Raises
    ------
    StateError
        If the file is damaged.
    """

    def __init__(self, path: Path, policy: SiloPolicy) -> None:
        self._path, self._policy = path, policy
        self._load()

    def _load(self) -> dict[str, dict[str, Figures]]:
        try:
            answers = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                group: {model: _figures(figures) for model, figures in _object(known).items()}
                for group, known in _object(answers).items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise StateError(f"{self._path}: not a readable ledger ({error}); start a new run") from error

    def answer(self, task: EvaluateTask, compute: Callable[[], Mapping[str, float]]) -> Figures:
        """Return what was answered before, or compute and note it.

        Raises
        ------
        ProtocolError
            If the server asks for more models, or validation rounds, than was agreed.
        StateError
            If the ledger is damaged, or the disk does not take it: then nothing is answered.
        """
        validates = task.purpose == "validation"
        group = f"{task.half} validation {task.number}" if validates else "tests"
        # The file counts, not memory: a service has a ledger for each configuration that a run's token came with.
        answers = self._load()
        model = digest_of({"values": task.model.values, "counters": task.model.counters})
        known = answers.setdefault(group, {})
        key = model if validates else f"{task.half} {model}"
        if key not in known:
            self._check(task, len(known), self._policy.max_candidates if validates else self._policy.max_tests)
            if sum(map(len, answers.values())) >= self._policy.max_answers:
                raise ProtocolError(f"{self._policy.max_answers} models of this run have been judged, as agreed")
            try:
                known[key] = dict(compute())
            except DataError:
                # That a model cannot be judged is an answer as well, and counts as one.
                known[key] = {}
                self._save(answers)
                raise
            self._save(answers)
        if not known[key]:
            raise ProtocolError(f"{task.purpose} {task.number}: this model could not be judged")
        return known[key]

    def _check(self, task: EvaluateTask, answered: int, limit: int) -> None:
        if task.number > self._policy.max_rounds:
            raise ProtocolError(f"{task.purpose} {task.number}: above the {self._policy.max_rounds} agreed to")
        if answered >= limit:
            raise ProtocolError(f"{task.purpose} {task.number}: {limit} models were agreed to, and have been answered")

    def _save(self, answers: Mapping[str, Mapping[str, Figures]]) -> None:
        try:
            write_text(self._path, json.dumps(answers))
        except OSError as error:
            raise StateError(f"{self._path}: cannot be written ({error}); free some space") from error


def _object(content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{type(content).__name__} where an object belongs")
    return content


def _figures(content: Any) -> Figures:
    figures = _object(content)
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in figures.values()):
        raise ValueError("a figure is no number")
    try:
        return {name: float(value) for name, value in figures.items()}
    except OverflowError as error:
        raise ValueError("a figure is too large") from error
