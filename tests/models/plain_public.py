# SPDX-License-Identifier: Apache-2.0
"""The public backbones written down again, plainly, from the descriptions of their topology; any width and size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}


class InsightfaceUnit(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before, eps=1e-5)
        self.conv1 = nn.Conv2d(before, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after, eps=1e-5)
        self.prelu = nn.PReLU(after)
        self.conv2 = nn.Conv2d(after, after, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after, eps=1e-5)
        if stride == 2:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, 2, bias=False), nn.BatchNorm2d(after, eps=1e-5))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
        return out + (self.downsample(x) if hasattr(self, "downsample") else x)


class Insightface(nn.Module):
    """iresnet: a convolution in the first shortcut of every stage, and a last norm with a shift."""

    def __init__(self, depth: int, width: int = 64, size: int = 112, dims: int = 512) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps=1e-5)
        self.prelu = nn.PReLU(width)
        before = width
        for stage, units in enumerate(UNITS[depth]):
            after = width << stage
            layers = [InsightfaceUnit(before, after, 2)]
            layers += [InsightfaceUnit(after, after, 1) for _ in range(1, units)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
            before = after
        side = -(-size // 16)
        self.bn2 = nn.BatchNorm2d(before, eps=1e-5)
        self.fc = nn.Linear(before * side * side, dims)
        self.features = nn.BatchNorm1d(dims, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.prelu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.features(self.fc(self.bn2(x).flatten(1)))


class TFaceUnit(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        if before != after:
            self.shortcut_layer = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.res_layer = nn.Sequential(
            nn.BatchNorm2d(before),
            nn.Conv2d(before, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.PReLU(after),
            nn.Conv2d(after, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
        )

    def forward(self, x: Tensor) -> Tensor:
        taken = x[:, :, :: self.stride, :: self.stride]
        return self.res_layer(x) + (self.shortcut_layer(x) if hasattr(self, "shortcut_layer") else taken)


class TFace(nn.Module):
    """IR: a flat list of units, every second pixel as the first shortcut, and a last norm without scale or shift."""

    def __init__(self, depth: int, width: int = 64, size: int = 112, dims: int = 512) -> None:
        super().__init__()
        self.input_layer = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.PReLU(width)
        )
        side = -(-size // 16)
        self.output_layer = nn.Sequential(
            nn.BatchNorm2d(8 * width),
            nn.Identity(),
            nn.Flatten(),
            nn.Linear(8 * width * side * side, dims),
            nn.BatchNorm1d(dims, affine=False),
        )
        units = []
        before = width
        for stage, count in enumerate(UNITS[depth]):
            for at in range(count):
                units.append(TFaceUnit(before, width << stage, 2 if at == 0 else 1))
                before = width << stage
        self.body = nn.Sequential(*units)

    def forward(self, x: Tensor) -> Tensor:
        return self.output_layer(self.body(self.input_layer(x)))


def faces(count: int, size: int, seed: int = 3) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def lived_in(module: nn.Module, size: int, seed: int = 0) -> nn.Module:
    """Give every tensor a value of its own, as training does, and statistics that fit the weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if p.ndim == 1 and name != "features.weight":
                p.add_(torch.randn(p.shape, generator=generator) * 0.2)
            elif p.ndim > 1:
                p.copy_(torch.randn(p.shape, generator=generator) / p[0].numel() ** 0.5)
        module.train()
        for step in range(30):
            module(faces(8, size, step))
    return module.eval()
