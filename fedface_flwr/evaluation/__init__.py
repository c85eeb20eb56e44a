# SPDX-License-Identifier: Apache-2.0
"""Embedding and face verification as the field reports it."""
