# SPDX-License-Identifier: Apache-2.0
"""One training set with its private head: a silo has one, the pooled baseline one a set."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedface_flwr.config import Config
from fedface_flwr.data.images import normalise, random_flip
from fedface_flwr.data.sampler import EpochSampler
from fedface_flwr.data.sets import ImageSet
from fedface_flwr.errors import StateError
from fedface_flwr.models.heads import margin_head
from fedface_flwr.seeding import derive_seed
from fedface_flwr.training.optimizers import sgd
from fedface_flwr.training.store import Arrays


class Branch:
    """A set, its sampler, its head with momentum, and its smoothed loss.

    All draws are functions of the run's seed, the set's name and the step, whoever trains on the set.

    Parameters
    ----------
    config : Config
        The run's configuration.
    name : str
        The set's name, by which its figures travel.
    images : ImageSet
        The training set.
    weight : float
        Factor on the gradient that this branch passes to the backbone; its head's own is not scaled.
    device : torch.device
        Where the head lives.
    """

    def __init__(self, config: Config, name: str, images: ImageSet, weight: float, device: torch.device) -> None:
        self.name = name
        self._config = config
        self._images = images
        self._weight = weight
        self._device = device
        self._sampler = EpochSampler(
            len(images.labels), config.training.batch_size, derive_seed(config.seed, "sampler", self.name)
        )
        head = config.head
        torch.manual_seed(derive_seed(config.seed, "head", self.name))
        self._head = margin_head(head.kind, config.model.embedding, images.num_identities, head.scale, head.margin)
        self._head.to(device)
        self._first_weight = self._head.weight.detach().clone()
        self._momentum = torch.zeros_like(self._first_weight)
        self._smoothed = 0.0
        self._steps = 0

    @property
    def num_images(self) -> int:
        """Size of the training set."""
        return len(self._images.labels)

    def reset(self) -> None:
        """Go back to the state before the first round."""
        self._set(self._first_weight, torch.zeros_like(self._momentum), 0.0, 0)

    def load(self, state: Arrays) -> None:
        """Take the state that :meth:`state` returned.

        Raises
        ------
        StateError
            If it is not of this set: a tensor is missing or of another shape.
        """
        shape = tuple(self._first_weight.shape)
        wanted = {"head": shape, "momentum": shape, "smoothed_loss": (1,), "steps": (1,)}
        kept = {name: state[f"{self.name}.{name}"].shape for name in wanted if f"{self.name}.{name}" in state}
        if kept != wanted:
            raise StateError(f"the stored head of {self.name} is not one of {shape[0]} identities; start a new run")
        self._set(
            torch.from_numpy(state[f"{self.name}.head"]),
            torch.from_numpy(state[f"{self.name}.momentum"]),
            float(state[f"{self.name}.smoothed_loss"][0]),
            int(state[f"{self.name}.steps"][0]),
        )

    def _set(self, weight: Tensor, momentum: Tensor, smoothed: float, steps: int) -> None:
        with torch.no_grad():
            self._head.weight.copy_(weight)
            self._momentum.copy_(momentum)
        self._smoothed, self._steps = smoothed, steps

    def state(self) -> Arrays:
        """Return what must outlive the round, by names of this branch's own."""
        return {
            f"{self.name}.head": self._head.weight.detach().cpu().numpy(),
            f"{self.name}.momentum": self._momentum.cpu().numpy(),
            f"{self.name}.smoothed_loss": np.array([self._smoothed]),
            f"{self.name}.steps": np.array([self._steps]),
        }

    def optimizer(self, rate: float) -> torch.optim.Optimizer:
        """Return the head's optimizer, ``m <- beta m + h``, whose momentum goes on across rounds."""
        options = self._config.optimizer
        return sgd(
            [self._head.weight],
            rate=rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            buffers=[self._momentum],
        )

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the images, float (n, 3, s, s), and labels, int64 (n,), of one step of the run, counted from 0."""
        indices = self._sampler.batch(step)
        generator = torch.Generator().manual_seed(derive_seed(self._config.seed, "flip", self.name, step))
        pixels = torch.from_numpy(np.ascontiguousarray(self._images.images(indices)))
        flipped = random_flip(pixels, generator, self._config.training.flip)
        return flipped, torch.from_numpy(self._images.labels[indices])

    def loss(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy with margin and the margin-free accuracy, both scalars on the device."""
        if self._weight != 1.0:
            embeddings.register_hook(lambda gradient: gradient * self._weight)  # type: ignore[no-untyped-call]
        logits, cosine = self._head(embeddings, labels)
        hit = (cosine.argmax(dim=1) == labels).float().mean()
        return torch.nn.functional.cross_entropy(logits, labels), hit

    def record(self, losses: list[float]) -> float:
        """Smooth the losses of a round's steps exponentially and return the smoothed loss, free of start-up bias."""
        smoothing = self._config.training.loss_smoothing
        for loss in losses:
            self._smoothed = smoothing * self._smoothed + (1 - smoothing) * loss
        self._steps += len(losses)
        return self._smoothed / (1 - smoothing**self._steps)


def to_device(pixels: Tensor, device: torch.device) -> Tensor:
    """Bring uint8 pixels to the device and normalise them there, channels last, which convolutions prefer."""
    moved = pixels.to(device, non_blocking=True)
    return normalise(moved).contiguous(memory_format=torch.channels_last)
