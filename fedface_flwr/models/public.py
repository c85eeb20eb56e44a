# SPDX-License-Identifier: Apache-2.0
"""State dicts of the public IR backbones, mapped by name, strictly and in both directions.

Two families share the units and differ in names and in two details of topology: insightface's ``iresnet18`` to
``iresnet200`` and TFace's ``IR_18`` to ``IR_101``, whose topology is also ours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.models.ir import TOTAL_STRIDE
from fedface_flwr.models.public_names import PARALLEL, Dialect, depth_of, dialect_of, listing, modules_of
from fedface_flwr.models.topology import FIRST_SHORTCUT, LAST_NORM, Architecture, Network, adapted


def import_state(
    tensors: Mapping[str, Tensor],
    *,
    where: str,
    dialect: Dialect | None = None,
    input_size: int | None = None,
    colour_order: str = "RGB",
) -> Network:
    """Make a network of a public state dict; depth, width and embedding size are told by its shapes.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        The state dict, in any floating type; a prefix ``module.`` of all names is passed over.
    where : str
        The file, for the error's text.
    dialect : Dialect, optional
        Whose names it has; by default told by them.
    input_size : int, optional
        Side of the input, which the shapes leave open up to 16 pixels; by default the largest that fits, 112 for a
        last feature map of 7x7.
    colour_order : {"RGB", "BGR"}
        Order of the channels that the weights were trained with. The network returned takes RGB.

    Returns
    -------
    Network
        With copies of the tensors, float32.

    Raises
    ------
    DataError
        If a tensor does not map, is not there, or has another shape, type or a value that is not finite, naming it.
    ConfigError
        If ``input_size`` does not fit the weights, or the colour order is unknown.
    """
    tensors = _without_prefix(tensors)
    dialect = dialect or dialect_of(tensors, where)
    depth = depth_of(tensors, dialect, where)
    ours = _renamed(tensors, dialect, depth, where)
    architecture = _architecture(ours, dialect, depth, input_size, where)
    _check(ours, architecture, dialect, where)
    state = {name: _converted(tensor) for name, tensor in ours.items()}
    if colour_order not in ("RGB", "BGR"):
        raise ConfigError(f"colour order {colour_order!r}: must be RGB or BGR")
    if colour_order == "BGR":
        state["stem.0.weight"] = state["stem.0.weight"].flip(1).contiguous()
    return Network.of(architecture, state)


def export_state(network: Network, dialect: Dialect) -> dict[str, Tensor]:
    """Return a state dict under the dialect's names and in its topology, that embeds as the network does.

    Returns
    -------
    dict of str to Tensor
        Contiguous, in the dialect's order.

    Raises
    ------
    DataError
        If the dialect has no tensor for a part that is not the identity.
    """
    if dialect is not Dialect.FEDFACE:
        insightface = dialect is Dialect.INSIGHTFACE
        network = adapted(network, conv_shortcuts=insightface, last_affine=insightface)
    tensors = network.module.state_dict()
    fields: dict[str, list[str]] = {}
    for name in tensors:
        module, _, field = name.rpartition(".")
        fields.setdefault(module, []).append(field)
    return {
        f"{theirs}.{field}": tensors[f"{ours}.{field}"].detach().clone()
        for theirs, ours in modules_of(dialect, network.architecture.depth).items()
        for field in fields.get(ours, ())
    }


def _renamed(tensors: Mapping[str, Tensor], dialect: Dialect, depth: int, where: str) -> dict[str, Tensor]:
    modules = modules_of(dialect, depth)
    places = {name: name.rpartition(".") for name in tensors}
    if unknown := [name for name, (module, _, _) in places.items() if module not in modules]:
        raise DataError(f"{where}: {len(unknown)} tensors have no place in {dialect}'s IR-{depth}: {listing(unknown)}")
    return {f"{modules[module]}.{field}": tensors[name] for name, (module, _, field) in places.items()}


def _without_prefix(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Take off what DistributedDataParallel puts before each name."""
    if all(name.startswith(PARALLEL) for name in tensors):
        return {name.removeprefix(PARALLEL): tensor for name, tensor in tensors.items()}
    return tensors


def _architecture(
    ours: Mapping[str, Tensor], dialect: Dialect, depth: int, input_size: int | None, where: str
) -> Architecture:
    stem, linear = ours.get("stem.0.weight"), ours.get("output.3.weight")
    if stem is None or linear is None or stem.ndim != 4 or linear.ndim != 2 or 0 in (*stem.shape, *linear.shape):
        raise DataError(f"{where}: lacks the first convolution's or the linear layer's weights, which tell its sizes")
    width, (embedding, features) = stem.shape[0], linear.shape
    side = math.isqrt(features // (8 * width))
    if side < 1 or side * side * 8 * width != features:
        raise DataError(
            f"{where}: the linear layer takes {features} features, not a square map of {8 * width} channels, "
            f"8 times the first convolution's {width}"
        )
    size = TOTAL_STRIDE * side if input_size is None else input_size
    if -(-size // TOTAL_STRIDE) != side or size < TOTAL_STRIDE:
        lowest = max(TOTAL_STRIDE * (side - 1) + 1, TOTAL_STRIDE)
        raise ConfigError(f"{where}: input size {size} does not fit it; it takes {lowest} to {TOTAL_STRIDE * side}")
    conv, affine = f"{FIRST_SHORTCUT}.0.weight" in ours, f"{LAST_NORM}.weight" in ours
    if dialect is not Dialect.FEDFACE:
        conv = affine = dialect is Dialect.INSIGHTFACE
    return Architecture(depth, width, size, embedding, conv, affine)


def _check(ours: Mapping[str, Tensor], architecture: Architecture, dialect: Dialect, where: str) -> None:
    """Refuse anything but exactly the architecture's tensors, before memory is taken for them."""
    theirs = {ours_: name for name, ours_ in modules_of(dialect, architecture.depth).items()}

    def named(names: Collection[str]) -> str:
        return listing([f"{theirs[n.rpartition('.')[0]]}.{n.rpartition('.')[2]}" for n in names])

    with torch.device("meta"):
        expected = architecture.build().state_dict()
    what = f"{dialect}'s {architecture.name} of width {architecture.width}"
    if missing := [name for name in expected if name not in ours]:
        raise DataError(f"{where}: lacks {len(missing)} tensors of {what}: {named(missing)}")
    if extra := [name for name in ours if name not in expected]:
        raise DataError(f"{where}: {len(extra)} tensors have no place in {what}: {named(extra)}")
    for name, tensor in ours.items():
        if tensor.shape != expected[name].shape:
            shapes = f"{list(tensor.shape)}, not {list(expected[name].shape)} as in {what}"
            raise DataError(f"{where}: tensor {named([name])} has shape {shapes}")
        if tensor.is_floating_point() != expected[name].is_floating_point() or tensor.is_complex():
            raise DataError(f"{where}: tensor {named([name])} is of type {tensor.dtype}")
        if not bool(tensor.isfinite().all()) or (name.endswith("running_var") and bool((tensor < 0).any())):
            raise DataError(f"{where}: tensor {named([name])} holds values that are not finite or negative variances")


def _converted(tensor: Tensor) -> Tensor:
    dtype = torch.float32 if tensor.is_floating_point() else torch.int64
    return tensor.detach().to("cpu", dtype, copy=True).contiguous()
