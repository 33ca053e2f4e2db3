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
JOBSET, TASK = (yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) for name in ("jobset", "skypilot"))
POD = {
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": "1",
    "metadata.labels['jobset.sigs.k8s.io/jobset-uid']": "f00",
    "metadata.labels['jobset.sigs.k8s.io/restart-attempt']": "2",
}


def job(name: str) -> dict[str, Any]:
    """A replicated job's specification."""
    (found,) = (each for each in JOBSET["spec"]["replicatedJobs"] if each["name"] == name)
    spec: dict[str, Any] = found["template"]["spec"]
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


def test_the_jobset_is_one_by_its_schema() -> None:
    """Models made of the definition: what it does not know falls out, and so would differ."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="make clouds has it")
    known = models.JobsetV1alpha2JobSet.from_dict(JOBSET)
    assert known.to_dict() == JOBSET


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
    assert placement.address == f"{JOBSET['metadata']['name']}-wide-0-0.{JOBSET['metadata']['name']}"
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


def test_what_the_task_sets_is_what_ranks_read(tmp_path: Path) -> None:
    """Its script, with a folder in place of the volume and a command that writes its environment down."""
    script = TASK["run"].replace("/shared", str(tmp_path)).replace("python -m bench", "record")
    record = tmp_path / "record"
    record.write_text(f'#!/bin/sh\nenv -0 > {tmp_path}/env-${{DDP_LAUNCHER:-none}}\necho "$@" >> {tmp_path}/calls\n')
    record.chmod(0o755)
    own = {"PATH": f"{tmp_path}:/usr/bin:/bin", **TASK["envs"], "DDP_KEY": "k" * 32}
    own |= {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_TASK_ID": "t7"}
    for rank in ("0", "0", "1"):
        subprocess.run(["/bin/bash", "-ec", script], env=own | {"SKYPILOT_NODE_RANK": rank}, check=True, timeout=20)
    placement = read(written(tmp_path / "env-skypilot"))
    assert placement is not None
    assert (placement.launcher, placement.rank, placement.nodes, placement.address) == ("skypilot", 1, 2, "10.0.0.1")
    assert (placement.job, placement.restarts) == ("t7", 0)
    assert (tmp_path / ".restarts-t7-0").read_text().strip() == "2"
    assert read(written(tmp_path / "env-none")) is None
    assert [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()] == [
        *("model=lenet", "-m", "model=lenet", "-m", "model=lenet"),
    ]
