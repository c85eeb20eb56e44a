# SPDX-License-Identifier: Apache-2.0
"""The door: SuperNodes with a registered key come through; nobody else, and nothing else, does."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import Deployment, Member

from fedface_flwr.provision.certificates import Authority, certificate_text

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/bin")
MEMBERS = (Member("alpha", "trainer"), Member("delta", "validator"))
ECHO = Path(__file__).parent / "echo"

pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed, and the door is nginx"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("door"), MEMBERS) as deployment:
        yield deployment


def status(deployment: Deployment, port: int, method: str, path: str) -> int:
    """Return the answer to a request whose path is sent as it is, dots and all."""
    context = ssl.create_default_context(cafile=str(deployment.kits / "alpha/ca.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    try:
        connection.request(method, path, body=b"" if method == "POST" else None)
        return connection.getresponse().status
    finally:
        connection.close()


def copied_kit(deployment: Deployment, name: str, copy: str) -> Path:
    """Return a copy of a party's kit, as a person may carry it about."""
    kit = deployment.folder / copy
    shutil.copytree(deployment.kits / name, kit, ignore=shutil.ignore_patterns("run", "logs", "flwr"))
    return kit


def plain_words(deployment: Deployment, name: str) -> list[str]:
    """Return what a party's script itself has said."""
    lines = deployment.console(name).splitlines()
    return [line.partition(" fedface: ")[2] for line in lines if " fedface: " in line]


def test_supernodes_come_through_and_are_online(federation: Deployment) -> None:
    assert federation.nodes() == {"alpha": "online", "delta": "online"}


def test_messages_of_a_hundred_megabytes_pass_both_ways_and_the_server_knows_the_names(
    federation: Deployment, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    federation.flwr("run", str(ECHO), federation.link, "--run-config", f'megabytes=100 out="{out}"')
    federation.wait_for(out.exists, "the echo app has written its result")
    assert json.loads(out.read_text()) == {"nodes": ["alpha", "delta"], "same": {"alpha": True, "delta": True}}


@pytest.mark.parametrize("command", [["ls"], ["run", str(ECHO)], ["stop", "1"], ["supernode", "list"]])
def test_flowers_command_line_is_refused_at_the_door(
    federation: Deployment, tmp_path: Path, command: list[str]
) -> None:
    outside = (federation.kits / "server/flwr/config.toml").read_text()
    outside = outside.replace(f"127.0.0.1:{federation.control_port}", f"127.0.0.1:{federation.port}")
    (tmp_path / "config.toml").write_text(outside)
    done = federation.run_here("flwr", *command, federation.link, FLWR_HOME=str(tmp_path))
    assert done.returncode != 0
    assert "403" in done.stdout + done.stderr or "ermission" in done.stdout + done.stderr
    assert '"POST /v1/control/' in (federation.kits / "server/logs/refused.log").read_text()


def test_whatever_the_superlink_serves_beyond_the_fleet_is_behind_the_door(federation: Deployment) -> None:
    context = ssl.create_default_context(cafile=str(federation.kits / "alpha/ca.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", federation.control_port, timeout=30, context=context)
    connection.request("GET", "/openapi.json")
    served = json.loads(connection.getresponse().read())["paths"]
    connection.close()
    behind = {path for path in served if not path.startswith("/v1/fleet/")} | {"/openapi.json", "/docs", "/health", "/"}
    assert sum(path.startswith("/v1/control/") for path in behind) > 20
    assert any("runtime" in path for path in behind)
    for path in behind:
        concrete = re.sub(r"{\w+}", "1", path)
        answers = {status(federation, federation.port, method, concrete) for method in ("GET", "POST")}
        assert answers == {403}, path
    assert status(federation, federation.control_port, "GET", "/health") == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/fleet//../../control/list-runs",
        "//v1/control/list-runs",
        "/v1/control/list-runs?/v1/fleet/pull-messages",
        "/v1/control/list-runs/../../fleet/../control/list-runs",
        "/v1/fleet/",
        "/v1/fleet/a/b",
        "/v1/fleetx/pull-messages",
    ],
)
def test_no_spelling_of_a_path_leads_around_the_door(federation: Deployment, path: str) -> None:
    assert status(federation, federation.port, "POST", path) == 403


def test_a_detour_to_the_fleet_reaches_the_fleet_alone(federation: Deployment) -> None:
    # 401 or 422 would be the fleet's own answer to a request that nobody signed.
    assert status(federation, federation.port, "POST", "/v1/control/../fleet/pull-messages") not in (200, 403, 404)
    assert status(federation, federation.port, "GET", "/v1/fleet/pull-messages") == 403


def test_the_door_does_not_say_what_it_runs(federation: Deployment) -> None:
    context = ssl.create_default_context(cafile=str(federation.kits / "alpha/ca.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", federation.port, timeout=30, context=context)
    connection.request("GET", "/")
    assert connection.getresponse().headers["Server"] == "nginx"
    connection.close()


def test_a_supernode_without_a_key_is_refused_in_plain_words(federation: Deployment) -> None:
    kit = copied_kit(federation, "delta", "keyless")
    script = (kit / "start.sh").read_text()
    (kit / "start.sh").write_text(script.replace("--auth-supernode-private-key party.key", ""))
    federation.start("keyless", kit)
    assert federation.wait_ended("keyless") == 1
    assert "takes no SuperNode without a registered key" in plain_words(federation, "keyless")[-1]


def test_a_server_of_another_authority_is_refused_in_plain_words(federation: Deployment) -> None:
    kit = copied_kit(federation, "delta", "misled")
    (kit / "ca.pem").write_text(certificate_text(Authority.create("elsewhere").certificate))
    federation.start("misled", kit)
    assert federation.wait_ended("misled") == 1
    assert f"127.0.0.1:{federation.port} is not the one of federation trial" in plain_words(federation, "misled")[-1]


def test_a_party_is_refused_before_it_is_registered_and_after_it_was_removed_and_may_return(
    federation: Deployment,
) -> None:
    omega = Member("omega", "trainer")
    federation.provision([*MEMBERS, omega])
    federation.start("omega")
    federation.wait_for(
        lambda: any("does not accept the key of omega" in line for line in plain_words(federation, "omega")),
        "omega is refused in plain words",
    )
    assert "omega" not in federation.nodes()

    register = str(federation.kits / "server/register.sh")
    assert "omega is registered" in federation.run_here(register, check=True).stdout
    federation.wait_connected("omega")
    assert federation.nodes()["omega"] == "online"

    assert "left: omega" in federation.provision()
    assert "omega is no longer of the federation" in federation.run_here(register, check=True).stdout
    federation.wait_for(
        lambda: any("sent this party away" in line for line in plain_words(federation, "omega")), "omega is sent away"
    )
    assert federation.nodes() == {"alpha": "online", "delta": "online"}
    federation.stop("omega")

    federation.provision([*MEMBERS, omega])
    assert "omega is registered" in federation.run_here(register, check=True).stdout
    federation.start("omega")
    federation.wait_connected("omega")
    federation.stop("omega")
    federation.provision()
    federation.run_here(register, check=True)


def test_a_killed_superlink_comes_back_and_the_parties_stay(federation: Deployment) -> None:
    before = federation.process("superlink")
    federation.kill("superlink")
    federation.wait_for(
        lambda: (federation.kits / "server/run/superlink.pid").read_text().strip() not in ("", str(before)),
        "another SuperLink runs",
    )
    federation.wait_for(lambda: _listed(federation) == {"alpha": "online", "delta": "online"}, "all are online")
    assert [federation.connections(name) for name in ("alpha", "delta")] == [1, 1]


def test_a_killed_door_comes_back_and_the_parties_stay(federation: Deployment) -> None:
    before = federation.process("door")
    federation.kill("door")
    federation.wait_for(
        lambda: (federation.kits / "server/run/door.pid").read_text().strip() not in ("", str(before)),
        "another nginx runs",
    )
    federation.wait_for(lambda: _reached(federation), "the door answers")
    federation.wait_for(lambda: _listed(federation) == {"alpha": "online", "delta": "online"}, "all are online")
    assert [federation.connections(name) for name in ("alpha", "delta")] == [1, 1]


def _reached(federation: Deployment) -> bool:
    try:
        return status(federation, federation.port, "GET", "/") == 403
    except OSError:
        return False


def _listed(federation: Deployment) -> dict[str, str]:
    try:
        return federation.nodes()
    except (AssertionError, KeyError):
        # While the SuperLink starts, its command line has an error for us.
        return {}


def test_a_killed_supernode_comes_back_by_itself(federation: Deployment) -> None:
    federation.kill("alpha")
    federation.wait_connected("alpha", 2)
    federation.wait_for(lambda: _listed(federation).get("alpha") == "online", "alpha is online")


def test_a_second_start_of_a_kit_is_refused(federation: Deployment) -> None:
    for name, reason in (("alpha", "started already"), ("server", "started already")):
        done = federation.run_here(str(federation.kits / name / "start.sh"))
        assert done.returncode == 1
        assert reason in done.stdout


def test_the_end_leaves_no_process(federation: Deployment) -> None:
    door = federation.process("door")
    assert federation.stop("alpha") == federation.stop("delta") == 0
    assert federation.stop("server") == 0
    federation.wait_for(lambda: federation.processes() == {}, "no process is left")
    assert not Path(f"/proc/{door}").exists()
