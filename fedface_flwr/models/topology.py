# SPDX-License-Identifier: Apache-2.0
"""What decides a backbone's tensors, and the same function in another topology.

insightface's iresnet and TFace's IR differ in two places: the former has a convolution in the shortcut of the very
first unit, where the latter takes every second pixel, and a scale and a shift in the last BatchNorm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedface_flwr.errors import DataError
from fedface_flwr.models.ir import IRBackbone

State = dict[str, Tensor]

_EPS = 1e-5  # of every BatchNorm here and in both public families, which is torch's default

FIRST_SHORTCUT = "stages.0.0.shortcut"
LAST_NORM = "output.4"
_LINEAR = "output.3"
# An identity that was written as a convolution and BN, and rounded to float16 on its way, is still one.
_IDENTITY_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Architecture:
    """All that decides names and shapes of an :class:`~fedface_flwr.models.ir.IRBackbone`'s tensors.

    Attributes
    ----------
    depth, width, input_size, embedding, conv_shortcuts, last_affine
        Its parameters.
    """

    depth: int
    width: int
    input_size: int
    embedding: int
    conv_shortcuts: bool = False
    last_affine: bool = False

    @property
    def name(self) -> str:
        """The usual name, such as ``IR-50``."""
        return f"IR-{self.depth}"

    def build(self) -> IRBackbone:
        """Return a backbone of this kind; under ``torch.device("meta")`` it takes no memory.

        Raises
        ------
        ConfigError
            If there is no such backbone.
        """
        return IRBackbone(
            self.depth,
            width=self.width,
            input_size=self.input_size,
            embedding=self.embedding,
            conv_shortcuts=self.conv_shortcuts,
            last_affine=self.last_affine,
        )


@dataclass(frozen=True)
class Network:
    """A backbone in evaluation mode, float32 on the CPU, and what it is."""

    architecture: Architecture
    module: IRBackbone

    @classmethod
    def of(cls, architecture: Architecture, state: State) -> Network:
        """Return the network of these tensors, which it keeps; names and shapes must be the architecture's."""
        with torch.device("meta"):
            module = architecture.build()
        module.load_state_dict(state, strict=True, assign=True)
        return cls(architecture, module.eval().requires_grad_(False))


def adapted(network: Network, *, conv_shortcuts: bool, last_affine: bool) -> Network:
    """Return a network of the asked topology that embeds as the given one does.

    Parameters
    ----------
    network : Network
        Left unchanged; tensors that need no change are shared.
    conv_shortcuts, last_affine : bool
        The topology, as in :class:`~fedface_flwr.models.ir.IRBackbone`.

    Raises
    ------
    DataError
        If the first shortcut's convolution is to go and is not the identity.
    """
    state, old = dict(network.module.state_dict()), network.architecture
    if conv_shortcuts and not old.conv_shortcuts:
        state |= _identity_shortcut(old.width)
    if old.conv_shortcuts and not conv_shortcuts:
        _drop_identity_shortcut(state)
    if last_affine and not old.last_affine:
        state |= {f"{LAST_NORM}.weight": torch.ones(old.embedding), f"{LAST_NORM}.bias": torch.zeros(old.embedding)}
    if old.last_affine and not last_affine:
        _fold_last_affine(state)
    return Network.of(replace(old, conv_shortcuts=conv_shortcuts, last_affine=last_affine), state)


def _identity_shortcut(channels: int) -> State:
    """Return a convolution and BN that change nothing; var + eps is 1 to the bit in float32."""
    return {
        f"{FIRST_SHORTCUT}.0.weight": torch.eye(channels)[:, :, None, None].clone(),
        f"{FIRST_SHORTCUT}.1.weight": torch.ones(channels),
        f"{FIRST_SHORTCUT}.1.bias": torch.zeros(channels),
        f"{FIRST_SHORTCUT}.1.running_mean": torch.zeros(channels),
        f"{FIRST_SHORTCUT}.1.running_var": torch.full((channels,), 1 - _EPS),
        f"{FIRST_SHORTCUT}.1.num_batches_tracked": torch.zeros((), dtype=torch.int64),
    }


def _drop_identity_shortcut(state: State) -> None:
    conv = state.pop(f"{FIRST_SHORTCUT}.0.weight")[:, :, 0, 0].double()
    names = ("weight", "bias", "running_mean", "running_var")
    scale, shift, mean, var = (state.pop(f"{FIRST_SHORTCUT}.1.{name}").double() for name in names)
    del state[f"{FIRST_SHORTCUT}.1.num_batches_tracked"]
    gain = scale / (var + _EPS).sqrt()
    error = max(
        (gain[:, None] * conv - torch.eye(len(conv), dtype=torch.float64)).abs().max().item(),
        (shift - gain * mean).abs().max().item(),
    )
    if not error <= _IDENTITY_TOLERANCE:
        raise DataError(
            f"the first unit's shortcut ({FIRST_SHORTCUT}.0.weight) is a trained convolution, up to {error:.3g} away "
            "from the identity, and the wanted names have no tensor for it; choose insightface's names or ONNX"
        )


def _fold_last_affine(state: State) -> None:
    """Put the last BN's scale into the linear layer before it, its shift into its running mean."""
    scale, shift = (state.pop(f"{LAST_NORM}.{name}").double() for name in ("weight", "bias"))
    weight, bias = (state[f"{_LINEAR}.{name}"].double() for name in ("weight", "bias"))
    mean, var = (state[f"{LAST_NORM}.{name}"].double() for name in ("running_mean", "running_var"))
    state[f"{_LINEAR}.weight"] = (scale[:, None] * weight).float()
    state[f"{_LINEAR}.bias"] = (scale * bias).float()
    state[f"{LAST_NORM}.running_mean"] = (scale * mean - shift * (var + _EPS).sqrt()).float()
