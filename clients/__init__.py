# SPDX-License-Identifier: Apache-2.0
"""Flower NumPyClients: trainers and evaluate-only validators."""
