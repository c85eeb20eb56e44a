# SPDX-License-Identifier: Apache-2.0
"""Improved residual (IR) backbones, the ResNet variant of the ArcFace lineage."""

from __future__ import annotations

from torch import Tensor, nn

from fedface_flwr.errors import ConfigError

UNITS_PER_STAGE = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3)}
PUBLIC_UNITS_PER_STAGE = {100: (3, 13, 30, 3), 200: (6, 26, 60, 6)}
"""Of depths that no configuration trains, but that public weights come in."""
TOTAL_STRIDE = 16


class IRUnit(nn.Module):
    """Residual unit: BN, conv 3x3, BN, PReLU, conv 3x3 with the stride, BN.

    After Deng et al., arXiv 1801.07698, section 3.1.

    Parameters
    ----------
    channels_in, channels_out : int
        Channels before and after the unit.
    stride : int
        Stride of the second convolution and of the shortcut.
    conv_shortcut : bool
        Give the shortcut a convolution and BN also where the stride alone changes.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, conv_shortcut: bool = False) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(channels_in),
            nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.PReLU(channels_out),
            nn.Conv2d(channels_out, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = _shortcut(channels_in, channels_out, stride, conv_shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, channels_in, s, s) to (n, channels_out, ceil(s / stride), ceil(s / stride))."""
        out: Tensor = self.residual(x) + self.shortcut(x)
        return out


class IRBackbone(nn.Module):
    """IR-18, IR-34, IR-50, IR-100 or IR-200 of two-convolution units, without squeeze-and-excitation.

    At width 64, 112 pixels and 512 dimensions the first three have 24,020,352, 34,134,080 and 43,585,600 trainable
    parameters: convolutions have no bias, the linear layer has one, the last BatchNorm has no scale or shift.
    Initial weights come from torch's global generator, so that ``torch.manual_seed`` determines them.

    Parameters
    ----------
    depth : {18, 34, 50, 100, 200}
        Number of layers by the usual count.
    width : int
        Channels of the first stage; the stages have 1, 2, 4 and 8 times as many.
    input_size : int
        Side of the square input in pixels, at least 16; four stages halve it, rounding up.
    embedding : int
        Dimensions of the output.
    dropout : float
        Probability, in [0, 1), of dropping a feature before the linear layer.
    conv_shortcuts : bool
        Give the first unit of every stage a convolution in its shortcut, the first stage's too, as insightface does.
    last_affine : bool
        Give the last BatchNorm a scale and a shift.

    Raises
    ------
    ConfigError
        When a parameter is outside its range.
    """

    def __init__(
        self,
        depth: int,
        *,
        width: int = 64,
        input_size: int = 112,
        embedding: int = 512,
        dropout: float = 0.4,
        conv_shortcuts: bool = False,
        last_affine: bool = False,
    ) -> None:
        super().__init__()
        _validate(depth, width, input_size, embedding, dropout)
        channels = 8 * width
        side = -(-input_size // TOTAL_STRIDE)
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.PReLU(width))
        self.stages = _stages((UNITS_PER_STAGE | PUBLIC_UNITS_PER_STAGE)[depth], width, conv_shortcuts)
        self.output = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.Dropout(dropout),
            nn.Flatten(),
            nn.Linear(channels * side * side, embedding),
            nn.BatchNorm1d(embedding, affine=last_affine),
        )
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Embed face images.

        Parameters
        ----------
        images : Tensor, float, shape (n, 3, input_size, input_size)
            RGB pixels normalised to [-1, 1].

        Returns
        -------
        Tensor, float, shape (n, embedding)
            Embeddings, not L2-normalised.
        """
        embeddings: Tensor = self.output(self.stages(self.stem(images)))
        return embeddings


def _stages(units: tuple[int, ...], width: int, conv_shortcuts: bool) -> nn.Sequential:
    stages = nn.Sequential()
    channels_in = width
    for stage, count in enumerate(units):
        channels = width * 2**stage
        first = IRUnit(channels_in, channels, stride=2, conv_shortcut=conv_shortcuts)
        rest = (IRUnit(channels, channels, stride=1) for _ in range(count - 1))
        stages.append(nn.Sequential(first, *rest))
        channels_in = channels
    return stages


def _shortcut(channels_in: int, channels_out: int, stride: int, conv: bool) -> nn.Module:
    if conv or channels_in != channels_out:
        return nn.Sequential(nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out))
    # A max-pool with kernel and stride 1 is the identity, yet writes a copy and an int64 index per value.
    return nn.MaxPool2d(1, stride) if stride > 1 else nn.Identity()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)
        nn.init.zeros_(module.bias)


def _validate(depth: int, width: int, input_size: int, embedding: int, dropout: float) -> None:
    if depth not in UNITS_PER_STAGE | PUBLIC_UNITS_PER_STAGE:
        public = sorted(PUBLIC_UNITS_PER_STAGE)
        raise ConfigError(
            f"model depth is {depth}; choose one of {sorted(UNITS_PER_STAGE)}, or of {public} for public weights"
        )
    if width < 1 or embedding < 1:
        raise ConfigError(f"model width is {width} and embedding {embedding}; both must be at least 1")
    if input_size < TOTAL_STRIDE:
        raise ConfigError(
            f"model input_size is {input_size}; it must be at least {TOTAL_STRIDE}, for four stages halve the image"
        )
    if not 0 <= dropout < 1:
        raise ConfigError(f"model dropout is {dropout}; it must lie in [0, 1)")
