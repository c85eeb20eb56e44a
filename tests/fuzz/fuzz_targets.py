# SPDX-License-Identifier: Apache-2.0
"""All targets, by name."""

from __future__ import annotations

import importlib

_MODULES = ("fuzz_data", "fuzz_dataprep", "fuzz_pairs", "fuzz_protocols", "fuzz_models", "fuzz_state")

TARGETS = {target.name: target for module in _MODULES for target in importlib.import_module(module).TARGETS}
FAULTY = {target.name: target for target in importlib.import_module("fuzz_faulty").TARGETS}
"""Readers that do what none may, by which the fuzzer itself is tried."""
