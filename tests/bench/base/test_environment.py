from importlib.metadata import PackageNotFoundError, version

import psutil

from bench.base import environment
from bench.base.environment import Usage


def test_it_never_fails_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert environment.source() == {"sha": None, "dirty": None}
    assert environment.describe()["cores"] >= 1


def test_an_installed_package_says_its_version(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "_git", lambda *arguments: None)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.source() == {"sha": None, "dirty": None, "version": version("elche-bench")}


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


def test_what_is_not_installed_is_not_recorded(monkeypatch):
    """Nothing needs torchvision; a version of it is told where a user's data set may have used it."""

    def absent(package):
        if package == "torchvision":
            raise PackageNotFoundError(package)
        return "1"

    assert environment.describe()["torchvision"]
    monkeypatch.setattr(environment, "version", absent)
    assert "torchvision" not in environment.describe()
    assert environment.describe()["torch"] == "1"


def test_an_installed_package_takes_no_other_projects_commit_for_its_own(monkeypatch):
    monkeypatch.setattr(environment, "ROOT", environment.ROOT / "bench")
    assert environment.source()["sha"] is None
