# SPDX-License-Identifier: Apache-2.0
"""Margin heads: the private classifier of a silo, always computed in float32."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedface_flwr.errors import ConfigError

# The sine at the float32 cosine just below 1: no cosine strictly inside (-1, 1) has a smaller one.
SMALLEST_SINE = math.sqrt(torch.finfo(torch.float32).eps)


class MarginHead(nn.Module, ABC):
    """Softmax classifier on cosines, with a margin that makes the target class harder.

    Parameters
    ----------
    embedding : int
        Dimensions of the embeddings.
    identities : int
        Number of classes.
    scale : float
        Factor between cosines and logits, positive.
    margin : float
        The margin, at least 0; its unit is the subclass's.

    Attributes
    ----------
    weight : Parameter, float32, shape (identities, embedding)
        One class centre per row, of any length; drawn from N(0, 0.01^2), the field's practice.

    Raises
    ------
    ConfigError
        When a parameter is outside its range.
    """

    def __init__(self, embedding: int, identities: int, scale: float, margin: float) -> None:
        super().__init__()
        if embedding < 1 or identities < 1:
            raise ConfigError(f"head has embedding {embedding}, identities {identities}; both must be at least 1")
        if not 0 < scale < math.inf:
            raise ConfigError(f"head scale is {scale}; it must be positive and finite")
        if not 0 <= margin < math.inf:
            raise ConfigError(f"head margin is {margin}; it must be finite and at least 0")
        self.scale = scale
        self.margin = margin
        self.weight = nn.Parameter(torch.empty(identities, embedding, dtype=torch.float32))
        nn.init.normal_(self.weight, std=0.01)

    @abstractmethod
    def with_margin(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the margin to the cosines of target classes.

        Parameters
        ----------
        cosine : Tensor, float32, any shape
            Cosines in [-1, 1], give or take rounding.

        Returns
        -------
        value, slope : Tensor, float32, of the cosines' shape
            The unscaled target logit and its derivative with respect to the cosine, both finite.
        """

    def forward(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compare embeddings with every class.

        Labels are not checked here, for on a GPU that would halt the queue at each step; the data's labels
        are checked before training starts.

        Parameters
        ----------
        embeddings : Tensor, floating point, shape (n, embedding)
            Embeddings of any length and precision.
        labels : Tensor, int64, shape (n,)
            Classes in ``[0, identities)``.

        Returns
        -------
        logits : Tensor, float32, shape (n, identities)
            Scaled cosines, the target's with its margin: the input of the cross-entropy.
        cosine : Tensor, float32, shape (n, identities)
            Margin-free cosines for the accuracy, detached.
        """
        with torch.autocast(embeddings.device.type, enabled=False):
            directions = F.normalize(embeddings.float())
            # Dividing the (n, identities) product by the lengths spares passes over the larger weight.
            lengths = torch.linalg.vector_norm(self.weight, dim=1).clamp_min(1e-12)
            cosine = F.linear(directions, self.weight) / lengths
            target = labels.unsqueeze(1)
            value, slope = self.with_margin(cosine.detach().gather(1, target))
            logits: Tensor = _ScaledLogits.apply(cosine, target, value, slope, self.scale)
        return logits, cosine.detach()


class ArcFace(MarginHead):
    r"""Additive angular margin: the target logit is cos(theta + m) (Deng et al., arXiv 1801.07698, eq. 3).

    *Beyond theta + m = pi* that cosine would rise again. From there the target logit goes on as
    ``cos(theta) - (1 - cos(m))``. A line of slope 1 in the cosine is the field's practice; this one is the
    only such line that meets cos(theta + m) = -1 without a jump. So the logit is continuous and falls over
    all of [0, pi], and samples on the wrong side keep a gradient.

    *Towards theta = 0* the derivative with respect to the cosine, sin(theta + m) / sin(theta), grows without
    bound, although an embedding's gradient, which has the further factor sin(theta), does not. The sine in
    that denominator is floored at ``sqrt(eps) = 3.5e-4``. No float32 cosine strictly inside (-1, 1) has a
    smaller one, so value and derivative are the formula's at all of these, and at 1 only the derivative is
    not: it is finite, ``cos(m) + sin(m) / 3.5e-4``.

    What remains is the rounding of the cosine itself, which no formula in the cosine can mend: for 512
    dimensions it turns into an error of the embedding's gradient of at most 1e-4 of its length at 0.1 rad and
    1e-2 at 0.01 rad; at 1e-3 rad and below the length lies between 0 and about 3 times the true one.

    Parameters
    ----------
    embedding, identities, scale
        See `MarginHead`.
    margin : float
        The angle m in radians, in [0, pi).
    """

    def __init__(self, embedding: int, identities: int, scale: float = 64.0, margin: float = 0.5) -> None:
        super().__init__(embedding, identities, scale, margin)
        if margin >= math.pi:
            raise ConfigError(f"head margin of ArcFace is {margin}; it is an angle in radians below pi")

    def with_margin(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos(theta + m), continued beyond pi, and its derivative; see `MarginHead.with_margin`."""
        cos_m, sin_m = math.cos(self.margin), math.sin(self.margin)
        cosine = cosine.clamp(-1.0, 1.0)
        # 1 - cosine^2 would lose half of its digits near 1.
        sine = ((1.0 - cosine) * (1.0 + cosine)).sqrt()
        value = cosine * cos_m - sine * sin_m
        slope = cos_m + sin_m * cosine / sine.clamp_min(SMALLEST_SINE)
        beyond = cosine < -cos_m
        return torch.where(beyond, cosine - (1.0 - cos_m), value), slope.masked_fill(beyond, 1.0)


class CosFace(MarginHead):
    """Additive cosine margin: the target logit is cos(theta) - m (Wang et al., arXiv 1801.09414, eq. 4).

    Parameters
    ----------
    embedding, identities, scale
        See `MarginHead`.
    margin : float
        What is taken from the target's cosine.
    """

    def __init__(self, embedding: int, identities: int, scale: float = 64.0, margin: float = 0.35) -> None:
        super().__init__(embedding, identities, scale, margin)

    def with_margin(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos(theta) - m and its derivative, 1; see `MarginHead.with_margin`."""
        return cosine - self.margin, torch.ones_like(cosine)


HEADS: dict[str, type[ArcFace] | type[CosFace]] = {"arcface": ArcFace, "cosface": CosFace}


def margin_head(kind: str, embedding: int, identities: int, scale: float, margin: float) -> MarginHead:
    """Build the head called ``kind``.

    Parameters
    ----------
    kind : {"arcface", "cosface"}
        Name of the head.
    embedding, identities, scale, margin
        See `MarginHead`.

    Raises
    ------
    ConfigError
        When no head has that name or a parameter is outside its range.
    """
    if kind not in HEADS:
        raise ConfigError(f"head kind is {kind!r}; choose one of {sorted(HEADS)}")
    return HEADS[kind](embedding, identities, scale, margin)


class _ScaledLogits(torch.autograd.Function):
    """Scale all cosines and put the margin's values in the targets' places.

    Written by hand because gather and scatter under autograd cost two further (n, identities) buffers in the
    backward pass, where this one needs only its result.
    """

    @staticmethod
    def forward(ctx: Any, cosine: Tensor, target: Tensor, value: Tensor, slope: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(target, slope)
        ctx.scale = scale
        return (cosine * scale).scatter_(1, target, value * scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        target, slope = ctx.saved_tensors
        result = gradient * ctx.scale
        result.scatter_(1, target, result.gather(1, target) * slope)
        return result, None, None, None, None
