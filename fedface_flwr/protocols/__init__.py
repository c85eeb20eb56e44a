# SPDX-License-Identifier: Apache-2.0
"""The field's evaluation protocols: their files, what they measure, and ``fedface-eval``."""
