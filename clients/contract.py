# SPDX-License-Identifier: Apache-2.0
"""The one place that knows the fields of every message between server and parties.

Arrays are named and ordered; everything else is a named scalar. A Flower ``NumPyClient`` sees a message's arrays as a
list and its scalars as a dictionary, so each kind of content is written and read here in both forms:

=============  =======================================  ======================================================
message        arrays                                   scalars
=============  =======================================  ======================================================
train          model, counters, momentum (PFM only)     party, half, layout, round, previous, rate
train reply    model, counters                          images, seconds; loss, accuracy, loss_ema of each set
evaluate       model, counters                          party, half, layout, purpose
evaluate reply none                                     score; or accuracy, accuracy_std, tar_at_far_*, auc,
                                                        pairs; seconds
query reply    none                                     parties: the names that the node acts for
prepare        none                                     party, half, layout
prepare reply  none                                     samples: images or pairs that the party owns
=============  =======================================  ======================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ProtocolError
from fedface_flwr.evaluation.tasks import EvaluateTask
from fedface_flwr.federation.layout import Layout, ModelState, Vector
from fedface_flwr.training.tasks import BranchResult, TrainResult, TrainTask

Scalars = dict[str, int | float | str]
Arrays = dict[str, npt.NDArray[Any]]

QUERY, PREPARE = "properties", "prepare"
BRANCH_FIGURES = ("loss", "accuracy", "loss_ema")
SCORE_FIGURES = ("score",)
TEST_FIGURES = ("accuracy", "accuracy_std", "tar_at_far_1e-3", "tar_at_far_1e-4", "auc", "pairs")

REQUEST: dict[str, type] = {"party": str, "half": str, "layout": str}


def model_arrays(model: ModelState) -> Arrays:
    """Return the arrays by which a model travels."""
    return {"model": model.values, "counters": model.counters}


def write_request(party: str, half: str, layout: Layout) -> Scalars:
    """Return the scalars that every message to a party has; a prepare message has no others."""
    return {"party": party, "half": half, "layout": layout.digest}


def read_request(scalars: Mapping[str, Any], layout: Layout) -> None:
    """Check a prepare message on the party; errors as :func:`read_train`."""
    _check_scalars(scalars, REQUEST)
    _check_layout(scalars, layout)


def read_prepare_reply(scalars: Mapping[str, Any]) -> int:
    """Return how many images or pairs a party owns; errors as :func:`read_train_reply`."""
    _check_scalars(scalars, {"samples": int})
    if scalars["samples"] < 1:
        raise ProtocolError(f"prepare reply: {scalars['samples']} samples")
    return int(scalars["samples"])


def write_train(party: str, half: str, layout: Layout, task: TrainTask) -> tuple[Arrays, Scalars]:
    """Return the arrays and scalars of a train message."""
    arrays = model_arrays(task.model)
    if task.momentum is not None:
        arrays["momentum"] = task.momentum
    return arrays, {
        **write_request(party, half, layout),
        "round": task.round,
        "previous": task.previous,
        "rate": task.rate,
    }


def read_train(arrays: Sequence[npt.NDArray[Any]], scalars: Mapping[str, Any], layout: Layout) -> TrainTask:
    """Read a train message on the silo.

    Raises
    ------
    ProtocolError
        If a field is missing, unknown, of the wrong type or length, or not finite.
    """
    _check_scalars(scalars, {**REQUEST, "round": int, "previous": int, "rate": float})
    _check_layout(scalars, layout)
    if len(arrays) not in (2, 3):
        raise ProtocolError(f"train message: {len(arrays)} arrays instead of model, counters and momentum")
    momentum = _array("momentum", arrays[2], np.float32, layout.num_parameters) if len(arrays) == 3 else None
    number, previous, rate = scalars["round"], scalars["previous"], scalars["rate"]
    if not (0 <= previous < number and 0 < rate < math.inf):
        raise ProtocolError(f"train message: round {number} after round {previous} at rate {rate}")
    return TrainTask(number, rate, _model(arrays, layout), momentum, previous)


def write_train_reply(result: TrainResult) -> tuple[list[npt.NDArray[Any]], int, Scalars]:
    """Return what a NumPyClient's ``fit`` returns: model and counters, the number of images, the figures by set."""
    metrics: Scalars = {"seconds": result.seconds}
    for name, branch in result.branches.items():
        metrics |= {f"{figure}.{name}": getattr(branch, figure) for figure in BRANCH_FIGURES}
    return [result.model.values, result.model.counters], result.num_images, metrics


def read_train_reply(arrays: Arrays, scalars: Mapping[str, Any], sets: Sequence[str], layout: Layout) -> TrainResult:
    """Read a trainer's reply on the server; ``sets`` are the training sets that the party owns.

    Raises
    ------
    ProtocolError
        If a field is missing, unknown, of the wrong type or length, or not finite.
    """
    if list(arrays) != ["model", "counters"]:
        raise ProtocolError(f"train reply: arrays {list(arrays)} instead of model and counters")
    kinds: dict[str, type] = {f"{figure}.{name}": float for name in sets for figure in BRANCH_FIGURES}
    _check_scalars(scalars, {"images": int, "seconds": float, **kinds})
    if scalars["images"] < 1 or scalars["seconds"] < 0:
        raise ProtocolError(f"train reply: {scalars['images']} images in {scalars['seconds']} seconds")
    model = _model([arrays["model"], arrays["counters"]], layout)
    with np.errstate(over="ignore"):
        squared_norm = np.dot(model.values, model.values)
    if not np.isfinite(squared_norm):
        raise ProtocolError("train reply: the model holds values that are not finite, or too large to be weights")
    branches = {name: BranchResult(*(float(scalars[f"{f}.{name}"]) for f in BRANCH_FIGURES)) for name in sets}
    return TrainResult(model, branches, int(scalars["images"]), float(scalars["seconds"]))


def write_evaluate(party: str, half: str, layout: Layout, purpose: str) -> Scalars:
    """Return the scalars of an evaluate message; its arrays are the model's."""
    return {**write_request(party, half, layout), "purpose": purpose}


def read_evaluate(arrays: Sequence[npt.NDArray[Any]], scalars: Mapping[str, Any], layout: Layout) -> EvaluateTask:
    """Read an evaluate message on the validator; errors as :func:`read_train`."""
    _check_scalars(scalars, {**REQUEST, "purpose": str})
    _check_layout(scalars, layout)
    if len(arrays) != 2:
        raise ProtocolError(f"evaluate message: {len(arrays)} arrays instead of model and counters")
    if scalars["purpose"] not in ("validation", "test"):
        raise ProtocolError(f"evaluate message: purpose {scalars['purpose']!r} is neither validation nor test")
    return EvaluateTask(scalars["purpose"], cast(Any, half_of(scalars)), _model(arrays, layout))


def read_figures(scalars: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Read an evaluate reply on the server: exactly the figures ``names``, and ``seconds``."""
    _check_scalars(scalars, dict.fromkeys((*names, "seconds"), float))
    return {name: float(value) for name, value in scalars.items()}


def party_of(scalars: Mapping[str, Any]) -> str:
    """Return the name of the party that a message is for."""
    if not isinstance(scalars.get("party"), str):
        raise ProtocolError("message: it does not say which party it is for")
    return str(scalars["party"])


def half_of(scalars: Mapping[str, Any]) -> str:
    """Return which half of the folds Federated Validation uses in this part of the run."""
    if scalars.get("half") not in ("first", "second"):
        raise ProtocolError(f"message: half {scalars.get('half')!r} is neither first nor second")
    return str(scalars["half"])


def _model(arrays: Sequence[npt.NDArray[Any]], layout: Layout) -> ModelState:
    return ModelState(
        cast(Vector, _array("model", arrays[0], np.float32, layout.num_values)),
        _array("counters", arrays[1], np.int64, layout.num_counters),
    )


def _array(name: str, array: npt.NDArray[Any], dtype: type[np.generic], length: int) -> npt.NDArray[Any]:
    if array.dtype != dtype or array.shape != (length,):
        raise ProtocolError(
            f"array {name} is {array.dtype}{list(array.shape)}, not {np.dtype(dtype)}[{length}] as the model needs"
        )
    return array


def _check_layout(scalars: Mapping[str, Any], layout: Layout) -> None:
    if scalars["layout"] != layout.digest:
        raise ProtocolError(
            f"the sender's model has layout {scalars['layout']}, this party's {layout.digest}; "
            "both must run the same version with the same model options"
        )


def _check_scalars(scalars: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    if set(scalars) != set(kinds):
        missing, unknown = sorted(set(kinds) - set(scalars)), sorted(set(scalars) - set(kinds))
        raise ProtocolError(f"message: fields missing {missing}, fields unknown {unknown}")
    for name, kind in kinds.items():
        value = scalars[name]
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise ProtocolError(f"message: field {name} is {value!r}, not a finite {kind.__name__}")
