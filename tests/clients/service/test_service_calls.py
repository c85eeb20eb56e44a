# SPDX-License-Identifier: Apache-2.0
"""Questions and answers between processes, and what happens when one of the two dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from service_processes import OPTIONS, call, eventually, log_of, run, service_of, start_caller

from clients.exchange import Answer, Request
from clients.node import Node
from clients.policy import SiloPolicy
from clients.service.code import PACKAGES
from clients.service.proxy import ask
from fedface_flwr.errors import FedFaceError, ProtocolError, StateError


def open_files(process: int | None) -> list[str]:
    entries = [Path(f"/proc/{process}/fd/{name}") for name in os.listdir(f"/proc/{process}/fd")]
    return [os.readlink(entry) for entry in entries if entry.is_symlink()]


def shared_memory(process: int | None) -> bool:
    mapped = "fedface-arrays" in Path(f"/proc/{process}/maps").read_text()
    return mapped or any("fedface-arrays" in name for name in open_files(process))


def test_100_mb_travel_both_ways_bit_for_bit_as_views_and_leave_nothing(node: Node) -> None:
    bits = np.random.default_rng(0)
    floats = bits.integers(0, 1 << 32, 15_000_000, np.uint32).view(np.float32)
    arrays = [floats, bits.integers(0, 1 << 16, 15_000_000, np.uint16), bits.integers(-9, 9, 1_250_000, np.int64)]
    given = Request("train", "{}", arrays, {"do": "echo", "text": "höhe\0", "rate": 0.1, "count": 1 << 60})
    answer = ask(given, node, follow=None, options=OPTIONS)
    assert [a.dtype for a in answer.arrays] == [a.dtype for a in arrays]
    assert [a.tobytes() for a in answer.arrays] == [a.tobytes() for a in arrays]
    assert answer.scalars == {"pid": service_of(node), "views": 1, "party": "alpha", **given.scalars}
    assert all(not array.flags.owndata and not array.flags.writeable for array in answer.arrays)
    assert shared_memory(os.getpid())
    del answer
    assert not shared_memory(os.getpid())
    call(node, do="echo")
    eventually(lambda: not shared_memory(service_of(node)))


def test_one_process_answers_them_all_and_keeps_no_file_of_any(node: Node) -> None:
    first = call(node, do="echo").scalars["pid"]
    eventually(lambda: sum(name.startswith("socket:") for name in open_files(service_of(node))) == 1)
    before = len(open_files(service_of(node)))
    assert [call(node, do="echo").scalars["pid"] for _ in range(20)] == [first] * 20
    eventually(lambda: len(open_files(service_of(node))) == before)


def test_callers_at_once_start_one_service(node: Node) -> None:
    callers = [start_caller(node, do="echo", name=n) for n in range(4)]
    answers = [json.loads(caller.communicate(timeout=120)[0]) for caller in callers]
    assert len({answer["pid"] for answer in answers}) == 1
    assert [answer["name"] for answer in answers] == [0, 1, 2, 3]
    assert log_of(node).count("serves alpha (trainer)") == 1


def test_a_service_that_is_killed_in_mid_call_is_started_again_and_asked_again(node: Node) -> None:
    first = call(node, do="echo").scalars["pid"]
    answer = call(node, do="die", deaths=1)
    assert answer.scalars["deaths"] == 1
    assert answer.scalars["pid"] != first
    assert call(node, do="echo").scalars["pid"] == answer.scalars["pid"]


def test_a_service_that_dies_twice_on_one_message_is_given_up_and_the_next_message_works(node: Node) -> None:
    with pytest.raises(FedFaceError, match="ended 2 times on one train message"):
        call(node, do="die", deaths=2)
    assert call(node, do="die", deaths=2).scalars["deaths"] == 2


def test_a_caller_that_is_killed_costs_the_service_nothing_but_its_own_call(node: Node) -> None:
    service = call(node, do="echo").scalars["pid"]
    computing, waiting = start_caller(node, do="wait", name="one"), None
    eventually(lambda: (node.silo_dir / "begun-one").exists())
    waiting = start_caller(node, do="wait", name="two")
    eventually(lambda: sum(name.startswith("socket:") for name in open_files(service_of(node))) == 5)
    for caller in (computing, waiting):
        caller.kill()
        caller.communicate()
    (node.silo_dir / "go").touch()
    assert call(node, do="echo").scalars["pid"] == service
    assert (node.silo_dir / "done-one").exists()
    # Nobody waited for it any more when its turn came.
    assert not (node.silo_dir / "begun-two").exists()
    assert "went away, its answer is dropped" in log_of(node)


def test_requests_wait_for_one_another(node: Node) -> None:
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda n=n: answers.append(call(node, do="wait", name=n))) for n in range(3)]
    call(node, do="echo")
    for thread in threads:
        thread.start()
    eventually(lambda: list(node.silo_dir.glob("begun-*")))
    eventually(lambda: sum(name.startswith("socket:") for name in open_files(service_of(node))) == 7)
    assert len(list(node.silo_dir.glob("begun-*"))) == 1
    (node.silo_dir / "go").touch()
    for thread in threads:
        thread.join()
    assert len(answers) == 3


def test_an_error_for_the_user_crosses_with_class_and_text(node: Node) -> None:
    service = call(node, do="echo").scalars["pid"]
    with pytest.raises(StateError) as caught:
        call(node, do="fail plainly")
    assert (type(caught.value), str(caught.value)) == (StateError, "no state of round 7")
    assert call(node, do="echo").scalars["pid"] == service


def test_of_any_other_error_only_the_class_crosses_and_a_fresh_process_follows(node: Node) -> None:
    service = call(node, do="echo").scalars["pid"]
    with pytest.raises(FedFaceError) as caught:
        call(node, do="fail secretly")
    assert str(caught.value) == "the silo service failed with ValueError; the silo's service log has the trace"
    assert caught.value.__cause__ is None
    assert "/private/faces/alice.jpg" in log_of(node)
    assert "Traceback" in log_of(node)
    assert call(node, do="echo").scalars["pid"] != service


def test_an_answer_that_cannot_be_sent_is_an_error_not_a_silence(node: Node) -> None:
    for do, reason in (("objects", "cannot be handed"), ("nan", "loss is nan")):
        with pytest.raises(FedFaceError, match=reason):
            call(node, do=do)


def test_a_request_for_another_party_is_refused(node: Node) -> None:
    call(node, do="echo")
    with pytest.raises(FedFaceError, match="'party': 'beta'"):
        call(replace(node, party="beta"), do="echo")


def test_a_service_with_an_old_policy_makes_room_for_a_new_one(node: Node) -> None:
    service = call(node, do="echo").scalars["pid"]
    stricter = SiloPolicy(max_rounds=3)
    (node.silo_dir / "policy.toml").write_text(stricter.to_toml())
    assert call(replace(node, policy=stricter), do="echo").scalars["pid"] != service


def test_a_service_of_older_code_makes_room_for_one_of_the_callers_code(node: Node, tmp_path: Path) -> None:
    project = Path(__file__).resolve().parents[3]
    for package in PACKAGES:
        (tmp_path / "old" / package).mkdir(parents=True)
        for path in (project / package).rglob("*.py"):
            copy = tmp_path / "old" / path.relative_to(project)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    old = {**os.environ, "PYTHONPATH": f"{tmp_path / 'old'}{os.pathsep}{Path(__file__).parent}"}
    command = [sys.executable, "-P", "-m", "clients.service.command", "serve", "--silo-dir", str(node.silo_dir)]
    command += ["--party", "alpha", "--role", "trainer", *OPTIONS]

    def serve_old() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, env=old, stderr=subprocess.DEVNULL)
        eventually(lambda: run("status", silo=node.silo_dir).returncode == 0)
        return process

    same = serve_old()
    assert call(node, do="echo").scalars["pid"] == same.pid
    same.terminate()
    assert same.wait(timeout=30) == 0
    with (tmp_path / "old" / "clients" / "trainer.py").open("a") as file:
        file.write("# older\n")
    older = serve_old()
    assert call(node, do="echo").scalars["pid"] != older.pid
    assert older.wait(timeout=30) == 0


def test_a_service_that_cannot_start_is_an_error_that_points_to_its_log(node: Node) -> None:
    with pytest.raises(FedFaceError, match="log"):
        ask(Request("train", "{}", [], {}), node, follow=None, options=["--answer", "no_such_module:answer"])
    assert "no_such_module" in log_of(node)


def test_a_service_that_is_stopped_by_a_signal_ends_in_the_middle_of_a_call(node: Node) -> None:
    call(node, do="echo")
    caller = start_caller(node, do="wait", name="one")
    eventually(lambda: (node.silo_dir / "begun-one").exists())
    service = service_of(node)
    assert service
    handle = os.pidfd_open(service)
    (node.silo_dir / "begun-one").unlink()
    signal.pidfd_send_signal(handle, signal.SIGTERM)
    os.close(handle)
    # The caller asks a new one.
    eventually(lambda: (node.silo_dir / "begun-one").exists())
    assert "SIGTERM, in the middle of a message" in log_of(node)
    (node.silo_dir / "go").touch()
    assert json.loads(caller.communicate(timeout=60)[0])["pid"] not in (service, 0)


def test_by_default_the_party_answers(node: Node) -> None:
    with pytest.raises(ProtocolError, match="half"):
        ask(Request("prepare", "{}", [], {}), node, follow=None)
    assert run("status", silo=node.silo_dir).returncode == 0
