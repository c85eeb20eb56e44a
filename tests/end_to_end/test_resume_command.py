# SPDX-License-Identifier: Apache-2.0
"""``fedface resume=``: a simulated run that was interrupted goes on, to the same bits."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grid import run_loop
from omegaconf import OmegaConf
from runs import environment_of, events_of, finish, launch, living_processes, start, wait_for_round
from safetensors.numpy import load_file

from fedface_flwr.compose import compose_config
from fedface_flwr.config import from_container
from fedface_flwr.files import locked

VALID = compose_config([], {"run.dir": "earlier"}).to_json()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_goes_on_to_the_bits_of_one_that_was_not(tmp_path: Path, number: signal.Signals) -> None:
    options = ("fv.mode=sync", "training.rounds=40", "training.steps_per_round=4", "wire=differences")
    # What lies where a person works is not taken for what a process of the run needs.
    for shadow in ("fedface_flwr/__init__.py", "shutil.py"):
        (tmp_path / shadow).parent.mkdir(exist_ok=True)
        (tmp_path / shadow).write_text("raise SystemExit('shadow')")
    process = start(tmp_path, *options)
    wait_for_round(tmp_path / "run", 3)
    superlink = next(one for one, command in living_processes(tmp_path).items() if "flower-superlink" in command)
    sockets = Path(environment_of(superlink)["RAY_TMPDIR"])
    assert sockets.is_dir()
    process.send_signal(number)
    # A killed one's processes are ended by its keeper, which holds the launcher's standard error as long as it lives.
    code, out, err = finish(process)
    ended = {signal.SIGTERM: (143, "fedface: ended by signal 15\n"), signal.SIGKILL: (-9, "")}
    assert (code, err) == ended[number], out
    assert living_processes(tmp_path) == {}
    assert not sockets.exists()
    done = len(events_of(tmp_path, "round"))
    assert 3 <= done < 40

    if number == signal.SIGTERM:
        config = tmp_path / "run" / "config.yaml"
        text = config.read_text()
        config.write_text(text.replace("phi: 0.1", "phi: 0.2"))
        code, out, err = finish(launch(tmp_path, f"resume={tmp_path / 'run'}"))
        assert code == 1, out + err
        assert err == f"fedface: {config}: has changed since the run was saved; restore it, or start anew\n"
        config.write_text(text)

    # A folder may be moved, and have a name that means something to Hydra.
    moved = (tmp_path / "run").rename(tmp_path / "seed=0")
    code, out, err = finish(launch(tmp_path, f"resume={moved}"))
    assert code == 0, out + err
    assert "resumed after round" in out
    moved.rename(tmp_path / "run")
    assert [event["round"] for event in events_of(tmp_path, "round")] == list(range(1, 41))
    assert [event["validation"] for event in events_of(tmp_path, "validation")] == list(range(1, 41))

    saved = OmegaConf.to_container(OmegaConf.load(tmp_path / "run" / "config.yaml"))
    assert isinstance(saved, dict)
    config = from_container(saved)
    loop, _ = run_loop(replace(config, run=replace(config.run, dir=str(tmp_path / "again"))))
    for name, tensor in loop.models["global"].tensors(loop.layout).items():
        np.testing.assert_array_equal(tensor, load_file(tmp_path / "run" / "checkpoint.safetensors")[name])


@pytest.mark.parametrize("name", ["run.lock", "launch.lock"])
def test_a_run_that_goes_on_is_not_resumed_and_not_disturbed(tmp_path: Path, name: str) -> None:
    saved = compose_config([], {"run.dir": str(tmp_path / "run")})
    (tmp_path / "run" / "flower").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text(saved.to_json())
    with locked(tmp_path / "run" / name):
        code, _, err = finish(launch(tmp_path, f"resume={tmp_path / 'run'}"))
    assert code == 1
    assert "its run goes on" in err.splitlines()[-1]
    assert (tmp_path / "run" / "flower").is_dir()


@pytest.mark.parametrize(
    ("prepare", "more", "complaint"),
    [
        ({}, (), "holds no config.yaml; is it a run's folder?"),
        ({"config.yaml": "a: 1", "summary.json": "{}"}, (), "that run is finished"),
        ({"config.yaml": "a: 1"}, ("seed=4",), "a run keeps its configuration; leave out seed=4"),
        ({"config.yaml": "a: 1"}, (), "a: no such key"),
        ({"config.yaml": "a:\n\t- 1"}, (), "config.yaml: cannot be read"),
        ({"config.yaml": VALID, "metrics.jsonl": "{}\n"}, (), "metrics.jsonl, line 1: not an event"),
    ],
)
def test_what_cannot_be_resumed_says_why(
    tmp_path: Path, prepare: dict[str, str], more: tuple[str, ...], complaint: str
) -> None:
    folder = tmp_path / "earlier"
    folder.mkdir()
    for name, text in prepare.items():
        (folder / name).write_text(text)
    code, _, err = finish(launch(tmp_path, f"resume={folder}", *more))
    assert code == 1
    assert complaint in err.splitlines()[-1]
    assert sorted(path.name for path in folder.iterdir()) == sorted(prepare)
    assert not list(tmp_path.glob("runs/*"))
