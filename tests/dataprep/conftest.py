# SPDX-License-Identifier: Apache-2.0
"""The readers' tests have writers of RecordIO and of pictures, which these tests use too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
