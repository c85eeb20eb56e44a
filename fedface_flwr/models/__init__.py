# SPDX-License-Identifier: Apache-2.0
"""Backbones and margin heads."""

from __future__ import annotations

from fedface_flwr.models.heads import ArcFace, CosFace, MarginHead, margin_head
from fedface_flwr.models.ir import IRBackbone

__all__ = ["ArcFace", "CosFace", "IRBackbone", "MarginHead", "margin_head"]
