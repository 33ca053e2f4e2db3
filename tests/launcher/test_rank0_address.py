"""Where rank 0's host is looked for, in which order, and what is said when nothing works."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddp.launcher import rank0_address
from ddp.launcher.environment import Placement
from ddp.launcher.interfaces import Interface
from ddp.launcher.rank0_address import Candidate, Known, Unreachable, candidates, own_address, reachable
from tests.held_up import in_time

TWO = Placement("slurm", 1, 2, 0, 1, 1, 2, ("n1", "n2"), "41")
LO = Interface("lo", "127.0.0.1", "127.0.0.0/8")
ETH = Interface("eth0", "10.0.0.7", "10.0.0.0/24")


def answer(*addresses: str) -> Callable[[str], list[str]]:
    return lambda name: [name] if name[0].isdecimal() else list(addresses)


def deaf(name: str) -> list[str]:
    if name[0].isdecimal():
        return [name]
    raise OSError("Name or service not known")


def no_scheduler(host: str) -> str:
    raise OSError("scontrol is not on the PATH")


def test_node_addr_comes_before_the_name_and_that_before_the_launching_host() -> None:
    launching = {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9"}
    known = candidates(TWO, launching, lambda host: "10.0.0.1", answer("10.0.0.2"))
    assert [each.address for each in known.candidates] == ["10.0.0.1", "10.0.0.2", "10.0.0.9"]
    assert known.tried == ()


def test_a_name_that_does_not_resolve_is_noted_and_costs_nothing_else() -> None:
    known = candidates(TWO, {}, lambda host: "127.0.0.1", deaf)
    assert known == Known(
        (Candidate("127.0.0.1", "NodeAddr=127.0.0.1 of n1"),), ("the name n1: Name or service not known",), True
    )


def test_a_name_that_is_loopback_on_its_own_host_is_left_out() -> None:
    """As /etc/hosts has it on Debian: rank 0 would listen where nobody else can come."""
    known = candidates(TWO, {}, no_scheduler, answer("127.0.1.1", "10.0.0.1"))
    assert [each.address for each in known.candidates] == ["10.0.0.1"]
    assert "127.0.1.1 is loopback" in known.tried[1]


def test_what_the_user_says_is_all_that_counts_and_one_host_needs_none() -> None:
    said = candidates(replace(TWO, address="10.0.0.5"), {}, no_scheduler, deaf)
    assert [each.address for each in said.candidates] == ["10.0.0.5"]
    alone = candidates(replace(TWO, node=0, nodes=1, hosts=("n1",)), {}, no_scheduler, deaf)
    assert [each.address for each in alone.candidates] == ["127.0.0.1"]


def test_rank_0_listens_on_its_own_address_or_in_the_same_network() -> None:
    own = Known((Candidate("192.0.2.1", "a"), Candidate("10.0.0.7", "b")))
    assert own_address(own, [LO, ETH]) == "10.0.0.7"
    near = Known((Candidate("192.0.2.1", "a"), Candidate("10.0.0.99", "b")))
    assert own_address(near, [LO, ETH]) == "10.0.0.7"
    with pytest.raises(
        Unreachable, match=r"NodeAddr of n1: no.*; a: is no address or network of this host; .*MASTER_ADDR"
    ):
        own_address(Known((Candidate("192.0.2.1", "a"),), ("NodeAddr of n1: no",)), [LO, ETH])


def test_addresses_are_tried_in_turn_until_rank_0_is_there() -> None:
    tries: list[str] = []

    def connect(where: tuple[str, int], timeout: float) -> socket.socket:
        tries.append(where[0])
        if where[0] != "10.0.0.2" or len(tries) < 4:
            raise OSError(111, "Connection refused")
        return socket.socket()

    known = Known(
        (Candidate("10.0.0.1", "a"), Candidate("192.0.2.9", "b (192.0.2.9)"), Candidate("10.0.0.2", "b (10.0.0.2)"))
    )
    assert reachable(lambda: known, 1, 5.0, connect, [ETH]) == "10.0.0.2"
    assert tries[:3] == ["10.0.0.1", "10.0.0.2", "192.0.2.9"]  # of one name, what is near comes first


def test_nobody_there_is_said_within_the_limit_with_all_that_was_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    known = Known((Candidate("127.0.0.1", "NodeAddr=127.0.0.1 of n1"),), ("the name n1: no",))
    began = time.monotonic()
    with pytest.raises(Unreachable) as late:
        reachable(lambda: known, port, 0.3)
    assert in_time(began, 10.0)
    said = str(late.value)
    assert "not reached within 0.3 s: the name n1: no; NodeAddr=127.0.0.1 of n1, port" in said
    assert "Connection refused" in said
    with pytest.raises(Unreachable, match="the launcher names no host"):
        reachable(lambda: Known(()), port, 0.1)


def test_a_name_without_an_address_is_looked_up_again_until_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kubernetes a pod may start before that of rank 0 has its name."""
    monkeypatch.setattr(rank0_address, "LOOK_S", 0.0)
    named = replace(TWO, address="pod-0")
    answers = [deaf, deaf, answer("10.0.0.2")]
    asked: list[Known] = []

    def look() -> Known:
        asked.append(candidates(named, {}, no_scheduler, answers[min(len(asked), 2)]))
        return asked[-1]

    assert reachable(look, 1, 60.0, lambda *_: socket.socket(), [ETH]) == "10.0.0.2"
    assert len(asked) == 3
    never = candidates(named, {}, no_scheduler, deaf)
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"not reached within 0\.3 s: MASTER_ADDR=pod-0: Name or service not known"):
        reachable(lambda: never, 1, 0.3)
    assert time.monotonic() >= began + 0.3


def test_rank_0_waits_for_its_own_name_and_not_for_what_will_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank0_address, "LOOK_S", 0.0)
    monkeypatch.setattr(rank0_address, "interfaces", lambda: [LO, ETH])
    answers = iter([Known((), ("no",), True), Known((Candidate("10.0.0.7", "b"),))])
    assert rank0_address.awaited_address(lambda: next(answers), 60.0) == "10.0.0.7"
    elsewhere = iter([Known((Candidate("192.0.2.1", "a"),))])
    with pytest.raises(Unreachable, match="does not know where to listen"):
        rank0_address.awaited_address(lambda: next(elsewhere), 60.0)


def test_a_resolver_without_an_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank0_address, "ASK_S", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(0.4) or [])
    with pytest.raises(OSError, match=r"the resolver did not answer within 0\.1 s"):
        rank0_address.resolve("n1")


def test_the_scheduler_is_asked_within_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "scontrol"
    script.write_text('#!/bin/sh\necho "NodeName=$4 Arch=x86_64 NodeAddr=10.1.2.3 NodeHostName=$4 Version=22"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert rank0_address.node_addr("n1") == "10.1.2.3"
    script.write_text("#!/bin/sh\necho 'Node n1 not found'\nexit 1\n")
    with pytest.raises(OSError, match="Node n1 not found"):
        rank0_address.node_addr("n1")
    script.write_text("#!/bin/sh\nexec sleep 5\n")
    monkeypatch.setattr(rank0_address, "ASK_S", 0.1)
    with pytest.raises(OSError, match="did not answer within"):
        rank0_address.node_addr("n1")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(OSError, match="scontrol is not on the PATH"):
        rank0_address.node_addr("n1")
