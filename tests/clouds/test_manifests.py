"""The manifests for Kubernetes and SkyPilot: by the published schemas, and what they set is what ranks read.

Nothing of a cluster or a cloud runs here. `make clouds` has the schemas; without them the rest is checked.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp.launcher.environment import read

FOLDER = Path(__file__).parents[2] / "docs" / "how-to" / "clouds"
JOBSETS = list(yaml.safe_load_all((FOLDER / "jobset.yaml").read_text()))
TASK = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
POD = {
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": "1",
    "metadata.labels['jobset.sigs.k8s.io/jobset-uid']": "f00",
    "metadata.labels['jobset.sigs.k8s.io/restart-attempt']": "2",
}


def jobset(name: str) -> dict[str, Any]:
    """The set with this job alone: where one fails, JobSet begins all of its jobs again."""
    (found,) = (each for each in JOBSETS if [job["name"] for job in each["spec"]["replicatedJobs"]] == [name])
    return dict(found)


def job(name: str) -> dict[str, Any]:
    """A replicated job's specification."""
    spec: dict[str, Any] = jobset(name)["spec"]["replicatedJobs"][0]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    (only,) = job(name)["template"]["spec"]["containers"]
    return dict(only)


def variables(name: str) -> dict[str, str]:
    """The environment of the second pod of a job that was made anew twice."""
    return {
        each["name"]: each.get("value") or POD[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container(name)["env"]
    }


@pytest.mark.parametrize("name", ["seeds", "wide"])
def test_the_jobset_is_one_by_its_schema(name: str) -> None:
    """Models made of the definition: what it does not know falls out, and so would differ."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="make clouds has it")
    known = models.JobsetV1alpha2JobSet.from_dict(jobset(name))
    assert known.to_dict() == jobset(name)


def test_the_task_is_one_by_its_schema() -> None:
    sky = pytest.importorskip("sky", reason="make clouds has it")
    from sky.utils import schemas
    from sky.utils.common_utils import validate_schema

    validate_schema(TASK, schemas.get_task_schema(), "not a task: ")
    task = sky.Task.from_yaml_config({key: value for key, value in TASK.items() if key != "secrets"})
    assert (task.num_nodes, task.name) == (2, "bench")


def test_pods_of_one_cell_are_its_ranks() -> None:
    placement = read(variables("wide"))
    assert placement is not None
    assert (placement.launcher, placement.rank, placement.world_size, placement.nodes) == ("kubernetes", 1, 2, 2)
    assert (placement.job, placement.restarts, placement.port) == ("f00", 2, 29400)
    own = jobset("wide")["metadata"]["name"]
    assert placement.address == f"{own}-wide-0-0.{own}"
    assert job("wide")["completions"] == placement.world_size == job("wide")["parallelism"]


def test_pods_of_the_sweep_are_no_ranks_and_have_a_seed_each() -> None:
    assert read(variables("seeds")) is None
    assert "seed=$(RANK)" in container("seeds")["args"]
    assert "-m" in container("seeds")["command"][2:]


@pytest.mark.parametrize("name", ["seeds", "wide"])
def test_run_folders_lie_on_the_shared_volume(name: str) -> None:
    pod = container(name)
    claims = {each["name"] for each in job(name)["template"]["spec"]["volumes"] if "persistentVolumeClaim" in each}
    assert pod["workingDir"] in {each["mountPath"] for each in pod["volumeMounts"] if each["name"] in claims}


def written(file: Path) -> dict[str, str]:
    """An environment, as `env -0` writes it."""
    return dict(each.split("=", 1) for each in file.read_text().rstrip("\0").split("\0"))


def played(folder: Path, rank: str, code: int = 0) -> int:
    """Run the task's script, with a folder in place of the volume and a command that writes its environment down."""
    script = TASK["run"].replace("/shared", str(folder)).replace("python -m bench", "record")
    record = folder / "record"
    lines = (f"env -0 > {folder}/env-${{DDP_LAUNCHER:-none}}", f'echo "$@" >> {folder}/calls', f"exit {code}")
    record.write_text("\n".join(("#!/bin/sh", *lines, "")))
    record.chmod(0o755)
    own = {"PATH": f"{folder}:/usr/bin:/bin", **TASK["envs"], "DDP_KEY": "k" * 32, "SKYPILOT_NODE_RANK": rank}
    own |= {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_TASK_ID": "t7"}
    return subprocess.run(["/bin/bash", "-c", script], env=own, check=False, timeout=20).returncode


def test_a_run_that_fails_is_the_end_of_the_task(tmp_path: Path) -> None:
    assert played(tmp_path, "1", code=5) == 5
    assert played(tmp_path, "0", code=5) == 5
    assert len((tmp_path / "calls").read_text().splitlines()) == 2


def test_what_the_task_sets_is_what_ranks_read(tmp_path: Path) -> None:
    assert [played(tmp_path, rank) for rank in ("0", "0", "1")] == [0, 0, 0]
    placement = read(written(tmp_path / "env-skypilot"))
    assert placement is not None
    assert (placement.launcher, placement.rank, placement.nodes, placement.address) == ("skypilot", 1, 2, "10.0.0.1")
    assert (placement.job, placement.restarts) == ("t7", 0)
    assert (tmp_path / ".restarts-t7-0").read_text().strip() == "2"
    assert read(written(tmp_path / "env-none")) is None
    assert [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()] == [
        *("model=lenet", "-m", "model=lenet", "-m", "model=lenet"),
    ]
