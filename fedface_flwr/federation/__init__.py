# SPDX-License-Identifier: Apache-2.0
"""The mathematics of federated learning on flat arrays."""
