# SPDX-License-Identifier: Apache-2.0
"""Readers for face sets and verification packs, and synthetic faces."""
