# SPDX-License-Identifier: Apache-2.0
"""A torch module whose state is one flat vector."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedface_flwr.errors import StateError
from fedface_flwr.federation.layout import Entry, Kind, Layout, ModelState

_BUFFER_KINDS = {
    "running_mean": Kind.RUNNING_MEAN,
    "running_var": Kind.RUNNING_VARIANCE,
    "num_batches_tracked": Kind.COUNTER,
}


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor, Kind]]:
    for path, child in module.named_modules():
        for name, buffer in child.named_buffers(recurse=False):
            if not isinstance(child, _NormBase):
                raise StateError(
                    f"buffer {path}.{name}: only batch normalisation's buffers can be combined across silos"
                )
            yield f"{path}.{name}", buffer, _BUFFER_KINDS[name]


class FlatModel:
    """Moves a module's parameters and statistics into one contiguous vector and keeps them there.

    Every parameter and buffer becomes a view of :attr:`values` or :attr:`counters`, so that loading a model, sending
    it and stepping it touch memory once.

    Parameters
    ----------
    module : nn.Module
        Already on its device. Its parameters must share one floating dtype.

    Attributes
    ----------
    layout : Layout
        Names, shapes and kinds, parameters first.
    values : Tensor, shape (layout.num_values,)
        Parameters and running statistics.
    counters : Tensor, int64, shape (layout.num_counters,)
        Batch counters.

    Raises
    ------
    StateError
        If the module holds a buffer that is not batch normalisation's.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        parameters = ((name, p, Kind.PARAMETER) for name, p in module.named_parameters())
        buffers = list(_buffers(module))
        statistics = (b for b in buffers if b[2] is not Kind.COUNTER)
        counts = (b for b in buffers if b[2] is Kind.COUNTER)
        tensors = list(chain(parameters, statistics, counts))
        self.layout = Layout(tuple(Entry(name, tuple(t.shape), kind) for name, t, kind in tensors))
        first = tensors[0][1]
        self.values = torch.empty(self.layout.num_values, dtype=first.dtype, device=first.device)
        self.counters = torch.empty(self.layout.num_counters, dtype=torch.int64, device=first.device)
        for (entry, place), (_, tensor, _) in zip(self.layout.items(), tensors, strict=True):
            home = (self.counters if entry.kind is Kind.COUNTER else self.values)[place].view(entry.shape)
            home.copy_(tensor.detach())
            tensor.data = home

    def load(self, state: ModelState) -> None:
        """Copy a model in.

        Raises
        ------
        StateError
            If the state's lengths are not the layout's.
        """
        lengths = (len(state.values), len(state.counters))
        if lengths != (self.layout.num_values, self.layout.num_counters):
            raise StateError(
                f"model of {lengths[0]} values and {lengths[1]} counters does not fit a layout of "
                f"{self.layout.num_values} and {self.layout.num_counters}; are model options the same everywhere?"
            )
        self.values.copy_(as_tensor(state.values))
        self.counters.copy_(as_tensor(state.counters))

    def state(self) -> ModelState:
        """Return a copy of the model as arrays in host memory."""
        return ModelState(self.values.detach().cpu().numpy().copy(), self.counters.cpu().numpy().copy())

    def view(self) -> ModelState:
        """Return the model as arrays in host memory that change with it, where it lies there; a copy else."""
        return ModelState(self.values.detach().cpu().numpy(), self.counters.cpu().numpy())

    def parameter_views(self, vector: Tensor) -> list[Tensor]:
        """Cut a vector of length ``layout.num_parameters`` into views of the parameters' shapes, in order."""
        return [vector[place].view(entry.shape) for entry, place in self.layout.items() if entry.kind is Kind.PARAMETER]


def as_tensor(array: np.ndarray) -> Tensor:
    """Wrap an array, or a copy where it is read-only, as received ones are: torch has no tensor for those."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
