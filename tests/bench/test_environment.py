import psutil

from bench import environment
from bench.environment import Usage


def test_it_never_fails_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert environment.source() == {"sha": None, "dirty": None}
    assert environment.describe()["cores"] >= 1


def test_own_work_is_no_disturbance(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(environment, "cores", lambda: 4)
    before, after = Usage(0.0, 100.0, 10.0), Usage(10.0, 140.0, 50.0)
    assert environment.disturbed(before, after, ranks=4) is None


def test_others_on_free_cores_are_no_disturbance(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(environment, "cores", lambda: 4)
    before, after = Usage(0.0, 0.0, 0.0), Usage(10.0, 40.0, 20.0)
    assert environment.disturbed(before, after, ranks=2) is None
    assert "2.0 of 4 cores" in (environment.disturbed(before, after, ranks=4) or "")
