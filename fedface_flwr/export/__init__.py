# SPDX-License-Identifier: Apache-2.0
"""Getting models out: ONNX, the names of public frameworks, and the model card."""
