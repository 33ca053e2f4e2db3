"""What launchers' variables mean, by tables of environments. No processes, no network."""

from __future__ import annotations

import re

import pytest

from ddp.launcher.environment import LOWEST_PORT, PORTS, Placement, read
from ddp.launcher.hostlist import hosts, tasks_per_node

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "r7", "TORCHELASTIC_RESTART_COUNT": "2", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "first", "MASTER_PORT": "29400",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "3",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}  # fmt: skip
FEW = {
    "SLURM_JOB_ID": "41", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "n[1-2]",
}  # fmt: skip
BATCH = {
    "SLURM_JOB_ID": "41", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0", "SLURM_TASK_PID": "77",
}  # fmt: skip
PASSED = {
    "SLURM_JOB_ID": "41",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NUM_NODES": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-9", "MASTER_ADDR": "10.0.0.1",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
RAY = {
    "RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": "77", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "40001",
}  # fmt: skip
RAY_ACTOR = {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": "77"}
DECLARED = {
    "DDP_LAUNCHER": "kubernetes", "DDP_JOB": "set-3", "DDP_RESTARTS": "2", "RANK": "1", "WORLD_SIZE": "2",
    "MASTER_ADDR": "first",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "placement"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None),  # set by hand, or by who knows whom
        ({"RAY_JOB_ID": "1", "RAY_RAYLET_PID": "2"}, None),  # a task of Ray's without a rank
        (TORCHRUN, Placement("torchrun", 3, 4, 1, 2, 1, 2, (), "r7", 2, "first", 29400, "2")),
        (TORCHRUN | {"WORLD_SIZE": "1"}, Placement("torchrun", job="r7", restarts=2)),
        (SRUN, Placement("slurm", 2, 3, 0, 1, 1, 2, ("n1", "n2"), "41", 0, "", 0, "0.0")),
        (SRUN | {"SLURM_RESTART_COUNT": "3", "MASTER_ADDR": "a", "MASTER_PORT": "7", "RANK": "2"},
         Placement("slurm", 2, 3, 0, 1, 1, 2, ("n1", "n2"), "41", 3, "a", 7, "0.3")),
        (BATCH, Placement("slurm", job="41", step="batch.0")),  # without srun: one process
        (BATCH | {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "2", "SLURM_RESTART_COUNT": "1"},
         Placement("slurm", job="40_2", restarts=1, step="batch.1")),
        (OPEN_MPI, Placement("mpi", 3, 4, 1, 2, 1, 2, (), "prterun-9", 0, "10.0.0.1")),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},  # dealt out in turn
         Placement("mpi", 1, 4, 0, 2, 1, 2, (), "prterun-9", 0, "10.0.0.1")),
        (MPICH, Placement("mpi", 1, 2, 1, 2, 0, 1)),
        (RAY, Placement("ray", 1, 2, 0, 1, 1, 2, (), "01000000", 0, "10.0.0.1", 40001)),
        (DECLARED, Placement("kubernetes", 1, 2, 0, 1, 1, 2, (), "set-3", 2, "first", 0, "2")),
        (DECLARED | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "DDP_HOSTS": "a,b"} | RAY_ACTOR,
         Placement("kubernetes", 1, 4, 1, 2, 0, 2, ("a", "b"), "set-3", 2, "first", 0, "2")),
        ({"DDP_LAUNCHER": "kubernetes", "DDP_JOB": "set-3"}, Placement("kubernetes", job="set-3", step="0")),
        # The nearest launcher counts.
        (DECLARED | TORCHRUN, Placement("torchrun", 3, 4, 1, 2, 1, 2, (), "r7", 2, "first", 29400, "2")),
        (SRUN | TORCHRUN, Placement("torchrun", 3, 4, 1, 2, 1, 2, (), "r7", 2, "first", 29400, "2")),
        # mpirun in a batch script: the job is SLURM's, which keeps it where it starts the script again.
        (BATCH | OPEN_MPI | {"SLURM_JOB_NODELIST": "n[1-2]"},
         Placement("mpi", 3, 4, 1, 2, 1, 2, ("n1", "n2"), "41", 0, "10.0.0.1", 0, "prterun-9.0")),
        ({name.replace("OMPI", "MV2"): value for name, value in OPEN_MPI.items()},
         Placement("mpi", 3, 4, 1, 2, 1, 2, (), "prterun-9", 0, "10.0.0.1")),
        # A step by few variables.
        (FEW, Placement("slurm", 1, 2, 0, 1, 1, 2, ("n1", "n2"), "41", 0, "", 0, "batch.0")),
        (FEW | {"SLURM_PROCID": "0"}, Placement("slurm", 0, 2, 0, 1, 0, 2, ("n1", "n2"), "41", 0, "", 0, "batch.0")),
        ({name: value for name, value in SRUN.items() if name != "SLURM_STEP_NUM_TASKS"},
         Placement("slurm", 2, 3, 0, 1, 1, 2, ("n1", "n2"), "41", 0, "", 0, "0.0")),
        # One task, or none, of which a container passes little.
        (PASSED | {"SLURM_NTASKS": "1"}, Placement("slurm", job="41", step="batch.0")),
        ({"SLURM_JOB_ID": "41", "SLURM_NTASKS": "8"}, Placement("slurm", job="41", step="batch.0")),  # salloc's shell
        ({name: value for name, value in BATCH.items() if name != "SLURM_JOB_ID"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, None),
        # Started by ssh in a batch script, which has SLURM's variables of a task.
        (BATCH | {"SLURM_NTASKS": "2"} | MPICH | {"PMI_RANK": "0", "MPI_LOCALRANKID": "0"},
         Placement("mpi", 0, 2, 0, 2, 0, 1, job="41", step=".0")),
        (BATCH | {"SLURM_STEP_ID": "4294967291", "SLURM_JOB_NODELIST": "n[1-2]"},
         Placement("slurm", job="41", step="4294967291.0")),
        (SRUN | {"PMIX_RANK": "2"}, Placement("slurm", 2, 3, 0, 1, 1, 2, ("n1", "n2"), "41", 0, "", 0, "0.0")),
        (SRUN | {"PMI_RANK": "2", "PMI_SIZE": "3"},  # srun --mpi=pmi2 sets both
         Placement("slurm", 2, 3, 0, 1, 1, 2, ("n1", "n2"), "41", 0, "", 0, "0.0")),
        (SRUN | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"} | MPICH,
         Placement("mpi", 1, 2, 1, 2, 0, 1, job="41", step=".0")),
        *((PASSED | {"PMI_RANK": "0", "PMI_SIZE": "2"} | own, Placement("mpi", 0, 2, 0, 2, 0, 1, job="41", step=".0"))
          for own in ({"MPI_LOCALRANKID": "0"}, {"HYDI_CONTROL_FD": "9"})),  # mpirun in a container
    ],
)  # fmt: skip
def test_what_a_launcher_says(environ: dict[str, str], placement: Placement | None) -> None:
    assert read(environ) == placement


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        (TORCHRUN | {"RANK": "4"}, "torchrun: the rank is 4, of 4 ranks: were variables of another launcher kept"),
        (TORCHRUN | {"RANK": "x"}, "RANK='x' is no whole number, though other variables"),
        (TORCHRUN | {"RANK": "-1"}, "RANK='-1' is no whole number"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR is not set, though other variables"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "9 ranks on this host, 2 hosts, but 4 ranks"),
        ({k: v for k, v in TORCHRUN.items() if k != "GROUP_RANK"}, "GROUP_RANK is not set"),
        (SRUN | {"SLURM_PROCID": "3"}, "slurm: the rank is 3, of 3 ranks"),
        (SRUN | {"SLURM_STEP_NODELIST": "n[1-3]"}, "names 3 hosts, SLURM_STEP_TASKS_PER_NODE 2, SLURM_STEP_NUM_NODES is 2"),
        (SRUN | {"SLURM_STEP_NODELIST": "n[1-"}, "is no list of hosts: its brackets do not close"),
        (SRUN | {"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is not set"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "two"}, "is no list of tasks on each host"),
        (SRUN | {"SLURM_NODEID": "2"}, "the place of the host is 2, of 2 hosts"),
        (SRUN | {"SLURM_LOCALID": "1"}, "the local rank is 1, of 1 ranks of its host"),
        (SRUN | {"RANK": "1"}, "slurm: RANK=1, but srun says 2: unset RANK"),
        (SRUN | {"WORLD_SIZE": "8"}, "slurm: WORLD_SIZE=8, but srun says 3: unset WORLD_SIZE"),
        ({"SLURM_JOB_ID": "41", "SLURM_PROCID": "1"},
         "SLURM_PROCID is 1, but SLURM_STEP_NUM_TASKS is not set: start the ranks with srun"),
        ({name: value for name, value in FEW.items() if name != "SLURM_STEP_NODELIST"} | {"SLURM_JOB_NODELIST": "n[1-2]"},
         "SLURM_PROCID is 1, but SLURM_STEP_ID is not set: start the ranks with srun"),
        # A container that hides the step: all of its ranks are refused, or the first would train alone.
        (PASSED, "SLURM_PROCID is 0, but SLURM_STEP_ID is not set: start the ranks with srun, and pass a container all"),
        (PASSED | {"SLURM_PROCID": "1"}, "SLURM_PROCID is 1, but SLURM_STEP_ID is not set: start the ranks with srun"),
        *((PASSED | {"SLURM_PROCID": rank, "PMI_RANK": rank, "PMI_SIZE": "2"},  # srun --mpi=pmi2
           f"SLURM_PROCID is {rank}, but SLURM_STEP_ID is not set: start") for rank in "01"),
        ({"SLURM_JOB_ID": "41", "SLURM_PROCID": "0"}, "SLURM_PROCID is 0, but SLURM_STEP_NUM_TASKS is not set: start"),
        (BATCH | {"SLURM_SRUN_COMM_PORT": "41897"}, "SLURM_PROCID is 0, but SLURM_STEP_ID is not set: start the ranks with"),
        ({name: value for name, value in FEW.items() if name != "SLURM_JOB_ID"}, "is 1, but SLURM_JOB_ID is not set: start"),
        ({name: value for name, value in SRUN.items() if name != "SLURM_JOB_ID"} | {"SLURM_PROCID": "0"},
         "slurm: SLURM_PROCID is 0, but SLURM_JOB_ID is not set: start the ranks with srun"),
        (BATCH | {"PMIX_RANK": "1"}, "PMIX_RANK=1, but no variable says of how many ranks: start them with mpirun"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, "4 ranks, 3 of them on this host: start as many on each host"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "0"}, "start as many on each host"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "0"}, "start as many on each host"),
        (TORCHRUN | {"MASTER_PORT": "65536"}, "torchrun: MASTER_PORT=65536: ports are 0 to 65535"),
        ({name: value for name, value in SRUN.items() if name != "SLURM_STEP_TASKS_PER_NODE"}
         | {"SLURM_STEP_NUM_NODES": "9" * 20}, "99999999999999999999 hosts, 65536 are the most"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "rank 3 is the 0th of its host"),
        (RAY | {"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE is 0: a host has at least one rank"),
        (RAY | {"RANK": "2"}, "ray: the rank is 2, of 2 ranks"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused_in_one_line(environ: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as refused:
        read(environ)
    assert "\n" not in str(refused.value)


def test_all_ranks_of_a_start_come_to_one_port_and_another_start_to_another() -> None:
    starts = (SRUN, SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}, SRUN | {"SLURM_RESTART_COUNT": "1"})
    first, other, again = (found.own_port for start in starts if (found := read(start)))
    assert first == other != again
    assert LOWEST_PORT <= first < LOWEST_PORT + PORTS < 32_768


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3,07],login", ("n1", "n2", "n3", "n07", "login")),
        ("rack[08-10]-[1-2]", ("rack08-1", "rack08-2", "rack09-1", "rack09-2", "rack10-1", "rack10-2")),
        ("a.example.org,b", ("a.example.org", "b")),
    ],
)
def test_a_list_of_hosts_is_read(text: str, names: tuple[str, ...]) -> None:
    assert hosts(text) == names


@pytest.mark.parametrize(
    "text", ["", "n[", "n]", "n[1-2", "n[2-1]", "n[a]", "n[]", "n[1-99999999]", "a,,b", "n[1-900]x[1-900]"]
)
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hosts"):
        hosts(text)


def test_tasks_on_each_host_are_read() -> None:
    assert tasks_per_node("2(x3),1") == (2, 2, 2, 1)
    for text in ("", "x", "2(x", "2(x99999999)"):
        with pytest.raises(ValueError, match="is no list of tasks"):
            tasks_per_node(text)
