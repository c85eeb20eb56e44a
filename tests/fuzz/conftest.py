# SPDX-License-Identifier: Apache-2.0
"""The process in which mutants are tried, apart from the tests' own, whose threads and memory must not matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_target import Fuzzer


@pytest.fixture(scope="session")
def fuzzer() -> Iterator[Fuzzer]:
    """Try a job of ``fuzz_worker.attempt_all``."""
    # Threads would be missing in forked processes, and each would reserve memory of its own.
    calm = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, str(Path(__file__).parent / "fuzz_worker.py"), "serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **calm}
    ) as worker:
        asked, answered = worker.stdin, worker.stdout
        assert asked is not None
        assert answered is not None

        def attempt(*job: Any) -> dict[str, Any]:
            asked.write(json.dumps(job) + "\n")
            asked.flush()
            found: dict[str, Any] = json.loads(answered.readline())
            return found

        yield attempt
        asked.close()
