# SPDX-License-Identifier: Apache-2.0
"""The one place that knows the fields of every message between server and parties.

Arrays are named and ordered; everything else is a named scalar. A Flower ``NumPyClient`` sees a message's arrays as a
list and its scalars as a dictionary, so each kind of content is written and read here in both forms:

=============  =======================================  ======================================================
message        arrays                                   scalars
=============  =======================================  ======================================================
train          model, counters, momentum (PFM only)     party, half, layout, round, previous, oldest,
                                                        rate, version
or             difference, statistics, counters         the same; base, scale, momentum_rate
train reply    model, counters                          images, seconds; loss, accuracy, loss_ema of each set
or             difference, statistics, counters         the same; scale
or             none                                     needs_model: the trainer does not hold the base
evaluate       model, counters                          party, half, layout, purpose, number
or             difference, statistics, counters, anchor  the same; base, scale
               (where the validator does not hold it)
evaluate reply none                                     score; or accuracy, accuracy_std, tar_at_far_*, auc,
                                                        pairs; seconds
or             none                                     needs_model: the validator does not hold the base
query reply    none                                     parties: the names that the node acts for; roles
prepare        none                                     party, half, layout
prepare reply  none                                     samples: images or pairs that the party owns
=============  =======================================  ======================================================

A difference travels in the run's ``wire.dtype`` (bfloat16 as the bits of uint16), the rest in float32 and int64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ProtocolError
from fedface_flwr.evaluation.tasks import EvaluateOrder
from fedface_flwr.federation.aggregation import norm
from fedface_flwr.federation.difference import (
    SCALES,
    WIRE_TYPES,
    AnchoredModel,
    Difference,
    FullModel,
    GlobalChange,
    MovedVector,
)
from fedface_flwr.federation.layout import Counters, Layout, ModelState, Vector
from fedface_flwr.training.tasks import BranchResult, TrainOrder, TrainResult

Scalars = dict[str, int | float | str]
Arrays = dict[str, npt.NDArray[Any]]

ARRAYS_OF_MODEL = ("model", "counters")
ARRAYS_OF_DIFFERENCE = ("difference", "statistics", "counters")
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


def write_train(party: str, half: str, layout: Layout, order: TrainOrder) -> tuple[Arrays, Scalars]:
    """Return the arrays and scalars of a train message."""
    sent = order.download
    scalars: Scalars = {
        **write_request(party, half, layout),
        "round": order.round,
        "previous": order.previous,
        "oldest": order.oldest,
        "rate": order.rate,
        "version": sent.version,
    }
    if isinstance(sent, GlobalChange):
        arrays = _difference_arrays(sent.difference, sent.statistics, sent.counters)
        return arrays, {**scalars, "base": sent.base, "scale": sent.difference.scale, "momentum_rate": sent.rate}
    arrays = model_arrays(sent.model)
    if sent.momentum is not None:
        arrays["momentum"] = sent.momentum
    return arrays, scalars


def read_train(
    arrays: Sequence[npt.NDArray[Any]], scalars: Mapping[str, Any], layout: Layout, dtype: str
) -> TrainOrder:
    """Read a train message on the silo; ``dtype`` is the type in which differences travel.

    Raises
    ------
    ProtocolError
        If a field is missing, unknown, of the wrong type or length, or not finite.
    """
    kinds = {**REQUEST, "round": int, "previous": int, "oldest": int, "rate": float, "version": str}
    changes = "base" in scalars
    _check_scalars(scalars, {**kinds, "base": str, "scale": float, "momentum_rate": float} if changes else kinds)
    _check_layout(scalars, layout)
    number, previous, rate = scalars["round"], scalars["previous"], scalars["rate"]
    oldest = scalars["oldest"]
    if not (0 <= oldest <= previous < number and 0 < rate < math.inf):
        raise ProtocolError(f"train message: round {number} after round {previous} at rate {rate}")
    download = _read_change(arrays, scalars, layout, dtype) if changes else _read_model(arrays, scalars, layout)
    return TrainOrder(number, rate, previous, oldest, download)


def _read_model(arrays: Sequence[npt.NDArray[Any]], scalars: Mapping[str, Any], layout: Layout) -> FullModel:
    if len(arrays) not in (2, 3):
        raise ProtocolError(f"train message: {len(arrays)} arrays instead of model, counters and momentum")
    momentum = _array("momentum", arrays[2], np.float32, layout.num_parameters) if len(arrays) == 3 else None
    return FullModel(scalars["version"], _model(arrays, layout), momentum)


def _read_change(
    arrays: Sequence[npt.NDArray[Any]], scalars: Mapping[str, Any], layout: Layout, dtype: str
) -> GlobalChange:
    difference, statistics, counters = _read_difference(arrays, scalars, layout, dtype)
    rate = scalars["momentum_rate"]
    if rate < 0:
        raise ProtocolError(f"train message: a momentum of rate {rate}")
    return GlobalChange(scalars["version"], scalars["base"], difference, statistics, counters, rate)


def write_train_reply(
    result: TrainResult, difference: Difference | None
) -> tuple[list[npt.NDArray[Any]], int, Scalars]:
    """Return what a NumPyClient's ``fit`` returns: arrays, the number of images, the figures by set.

    With ``difference``, from the model that the round started from, that travels instead of the parameters.
    """
    metrics: Scalars = {"seconds": result.seconds}
    for name, branch in result.branches.items():
        metrics |= {f"{figure}.{name}": getattr(branch, figure) for figure in BRANCH_FIGURES}
    model = result.model
    if difference is None:
        return [model.values, model.counters], result.num_images, metrics
    # Copies, for the model may be lent.
    statistics, counters = model.values[len(difference.values) :].copy(), model.counters.copy()
    arrays = _difference_arrays(difference, statistics, counters)
    return list(arrays.values()), result.num_images, {**metrics, "scale": difference.scale}


NEEDS_MODEL: Scalars = {"needs_model": 1}
"""What a party answers that does not hold the base of the difference that it was sent."""


def needs_model(arrays: Arrays, scalars: Mapping[str, Any]) -> bool:
    """Return whether a party's reply asks for the whole model; a trainer's counts no images beside."""
    return not arrays and {"images": 0, **scalars} == {"images": 0, **NEEDS_MODEL}


def read_train_reply(
    arrays: Arrays,
    scalars: Mapping[str, Any],
    sets: Sequence[str],
    layout: Layout,
    start: ModelState | None = None,
    dtype: str = "float32",
) -> TrainResult:
    """Read a trainer's reply on the server.

    Parameters
    ----------
    arrays, scalars : mapping
        The reply's.
    sets : sequence of str
        The training sets that the party owns.
    layout : Layout
        The backbone's.
    start : ModelState, optional
        The model that the round started from, where differences travel.
    dtype : str
        The type in which they do.

    Raises
    ------
    ProtocolError
        If a field is missing, unknown, of the wrong type or length, or not finite.
    """
    names = ARRAYS_OF_MODEL if start is None else ARRAYS_OF_DIFFERENCE
    if tuple(arrays) != names:
        raise ProtocolError(f"train reply: arrays {list(arrays)} instead of {', '.join(names)}")
    kinds: dict[str, type] = {f"{figure}.{name}": float for name in sets for figure in BRANCH_FIGURES}
    extra: dict[str, type] = {} if start is None else {"scale": float}
    _check_scalars(scalars, {"images": int, "seconds": float, **kinds, **extra})
    if scalars["images"] < 1 or scalars["seconds"] < 0:
        raise ProtocolError(f"train reply: {scalars['images']} images in {scalars['seconds']} seconds")
    if start is None:
        model = _model([arrays["model"], arrays["counters"]], layout)
    else:
        difference, statistics, counters = _read_difference(list(arrays.values()), scalars, layout, dtype)
        moved = MovedVector(start.values, difference, statistics)
        # Read block by block, as everybody does who reads local models, it is as good as the array.
        model = ModelState(cast(Vector, moved), counters)
    if not math.isfinite(norm(model.values)):
        raise ProtocolError("train reply: the model holds values that are not finite, or too large to be weights")
    branches = {name: BranchResult(*(float(scalars[f"{f}.{name}"]) for f in BRANCH_FIGURES)) for name in sets}
    return TrainResult(model, branches, int(scalars["images"]), float(scalars["seconds"]))


def write_evaluate(
    party: str, half: str, layout: Layout, purpose: str, number: int, model: ModelState | AnchoredModel
) -> tuple[Arrays, Scalars]:
    """Return the arrays and scalars of an evaluate message.

    ``number`` is the validation round's, from 1, or the test's, by which the party counts what it answers.
    """
    scalars: Scalars = {**write_request(party, half, layout), "purpose": purpose, "number": number}
    if isinstance(model, ModelState):
        return model_arrays(model), scalars
    arrays = _difference_arrays(model.difference, model.statistics, model.counters)
    if model.anchor is not None:
        arrays["anchor"] = model.anchor
    return arrays, {**scalars, "base": model.base, "scale": model.difference.scale}


def read_evaluate(
    arrays: Sequence[npt.NDArray[Any]], scalars: Mapping[str, Any], layout: Layout, dtype: str
) -> EvaluateOrder:
    """Read an evaluate message on the validator; parameters and errors as :func:`read_train`."""
    kinds = {**REQUEST, "purpose": str, "number": int}
    anchored = "base" in scalars
    _check_scalars(scalars, {**kinds, "base": str, "scale": float} if anchored else kinds)
    _check_layout(scalars, layout)
    purpose, number = scalars["purpose"], scalars["number"]
    if purpose not in ("validation", "test"):
        raise ProtocolError(f"evaluate message: purpose {purpose!r} is neither validation nor test")
    if number < 1:
        raise ProtocolError(f"evaluate message: number {number}; counted from 1")
    if not anchored and len(arrays) != 2:
        raise ProtocolError(f"evaluate message: {len(arrays)} arrays instead of model and counters")
    model = _read_anchored(arrays, scalars, layout, dtype) if anchored else _model(arrays, layout)
    return EvaluateOrder(purpose, cast(Any, half_of(scalars)), number, model)


def _read_anchored(
    arrays: Sequence[npt.NDArray[Any]], scalars: Mapping[str, Any], layout: Layout, dtype: str
) -> AnchoredModel:
    difference, statistics, counters = _read_difference(arrays[:3], scalars, layout, dtype)
    if len(arrays) > 4:
        raise ProtocolError(f"evaluate message: {len(arrays)} arrays, of which the fourth is the anchor")
    anchor = _array("anchor", arrays[3], np.float32, layout.num_values) if len(arrays) == 4 else None
    return AnchoredModel(scalars["base"], difference, statistics, counters, anchor)


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


def _difference_arrays(difference: Difference, statistics: Vector, counters: Counters) -> Arrays:
    return {"difference": difference.values, "statistics": statistics, "counters": counters}


def _read_difference(
    arrays: Sequence[npt.NDArray[Any]], scalars: Mapping[str, Any], layout: Layout, dtype: str
) -> tuple[Difference, Vector, Counters]:
    if len(arrays) != 3:
        raise ProtocolError(f"message: {len(arrays)} arrays instead of {', '.join(ARRAYS_OF_DIFFERENCE)}")
    if not SCALES[0] <= scalars["scale"] <= SCALES[1]:
        raise ProtocolError(f"message: a difference of scale {scalars['scale']}")
    values = _array("difference", arrays[0], WIRE_TYPES[dtype], layout.num_parameters)
    statistics = _array("statistics", arrays[1], np.float32, layout.num_values - layout.num_parameters)
    counters = _array("counters", arrays[2], np.int64, layout.num_counters)
    return Difference(dtype, values, scalars["scale"]), statistics, counters


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
