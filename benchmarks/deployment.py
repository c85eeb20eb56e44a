# SPDX-License-Identifier: Apache-2.0
"""What a round costs beyond training, on a real federation, against the same app without what makes it cheap.

IR-18 at full size, 3 trainers and 2 validators on this machine, over loopback with TLS, authenticated nodes and a
database. The yardstick opens data and model anew for every message and sends whole models and momentum in float32;
ours has the silo service and sends differences in bfloat16. Both in one call; the ratio is of medians over the rounds
after the first, which always sends the whole model.

    python -m benchmarks.deployment [rounds]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / part) for part in ("deployment", "strategies")]

from faces import TRAINERS, VALIDATORS, write_faces  # noqa: E402
from federation import Deployment, Member  # noqa: E402

from fedface_flwr.reporting.metrics import read_metrics  # noqa: E402

SIDES = {
    "yardstick": ("service=false", ("wire=weights",)),
    "ours": ("service=true", ("wire=differences", "wire.dtype=bfloat16")),
}


def options(rounds: int) -> tuple[str, ...]:
    """Return the run's overrides."""
    packs = ",".join(f"{name}.bin" for name in VALIDATORS)
    return (
        "strategy=fedface",
        "model=ir18",
        "head=cosface_small",
        "data=faces",
        "data.root=elsewhere",
        f"data.silos=[{','.join(TRAINERS)}]",
        f"data.validators=[{packs}]",
        "data.tests=[]",
        "training.batch_size=4",
        "optimizer.rate=0.001",
        "training.steps_per_round=1",
        f"training.rounds={rounds}",
        "fv.mode=async",
        "fv.pairs=10",
    )


def measure(side: str, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Run one side; return its rounds."""
    node_config, wire = SIDES[side]
    data = write_faces(folder / "data")
    roles = dict.fromkeys(TRAINERS, "trainer") | dict.fromkeys(VALIDATORS, "validator")
    members = [Member(name, role, data[name], node_config) for name, role in roles.items()]
    run = folder / "run"
    with Deployment(folder, members, door=False, policy={"min_pairs": 10, "min_images": 4}) as federation:
        launch = ["federation=deploy", f"superlink={federation.link}", f"run.dir={run}", *options(rounds), *wire]
        command = [sys.executable, "-m", "fedface_flwr.launch", *launch]
        done = subprocess.run(
            command, env=federation.environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}\n{federation.logs()}")
    return [event for event in read_metrics(run / "metrics.jsonl") if event["event"] == "round"]


def main() -> None:
    """Measure both sides and print the ratio."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    medians, sent = {}, {}
    for side in SIDES:
        with tempfile.TemporaryDirectory(prefix="fedface-") as folder:
            later = measure(side, rounds, Path(folder))[1:]
        beyond = [event["seconds"]["other"] + event["seconds"]["aggregation"] for event in later]
        medians[side] = statistics.median(beyond)
        silos = [figures for event in later for figures in event["silos"].values()]
        sent[side] = statistics.median(figures["bytes_down"] + figures["bytes_up"] for figures in silos)
        shown = ", ".join(f"{seconds:.1f}" for seconds in beyond)
        print(f"{side}: {shown} s a round beyond training; {sent[side] / 1e6:.1f} MB a trainer and round", flush=True)
    print(f"time beyond training: {medians['ours'] / medians['yardstick']:.2f} of the yardstick's (at most 0.4)")
    print(f"bytes: {sent['ours'] / sent['yardstick']:.3f} of the yardstick's (at most 0.34)")


if __name__ == "__main__":
    main()
