"""Reads SLURM's variables of a job and of a step: whether srun started this process, and which tasks are on which host."""

from __future__ import annotations

from ddp.launcher.hostlist import MOST, tasks_per_node
from ddp.launcher.variables import Environment, number

STEP = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST")
"""Variables of a SLURM step: its number, the older name of that, and its hosts."""
BATCH_STEP = ("batch", "4294967291")
"""SLURM's names for the step of a batch script."""
SRUN = ("SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE")
"""Variables that srun gives its tasks, and SLURM no batch script."""
EVERY = ("SLURM_TASK_PID", "SLURM_GTIDS")
"""Variables that SLURM gives all tasks and batch scripts. Without them, a container has only some variables."""
REMEDY = "start the ranks with srun, and pass a container all variables SLURM_*; unset SLURM_PROCID to train alone"


def tasks(environ: Environment) -> str:
    """Return the name of the variable with the number of tasks of a SLURM step; "" if there is none."""
    return next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if environ.get(name)), "")


def in_step(environ: Environment) -> bool:
    """Return whether srun started this process. A batch script and salloc's shell have some of a task's variables, too."""
    if "SLURM_PROCID" not in environ:
        return False
    inside = step_of(environ) not in ("", *BATCH_STEP)
    return inside or number(environ, "SLURM_PROCID") > 0  # outside of a step: refused later


def hides_step(environ: Environment) -> bool:
    """Return whether this may be a task of a step whose variables a container hides: a batch script has all of its own."""
    if "SLURM_PROCID" not in environ or step_of(environ) or environ.get(tasks(environ)) == "1":
        return False
    return any(name in environ for name in SRUN) or not any(name in environ for name in EVERY)


def step_of(environ: Environment) -> str:
    """Return the id or the hosts of SLURM's step; "" if no variable has either."""
    return next((value for name in STEP if (value := environ.get(name))), "")


def job_of(environ: Environment) -> str:
    """Return the id of SLURM's job; "" outside of one."""
    array = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array[0]}_{array[1]}" if array[0] and array[1] else environ.get("SLURM_JOB_ID", "")


def tasks_by_host(environ: Environment, size: int, nodes: int) -> tuple[int, ...]:
    """Return the number of tasks on each host of a step. If SLURM does not tell, assume that tasks are spread evenly.
    Raises ValueError."""
    if nodes > MOST:
        raise ValueError(f"slurm: {nodes} hosts, {MOST} are the most: were variables of another step kept?")
    text = environ.get("SLURM_STEP_TASKS_PER_NODE")
    if text is not None or not nodes:
        return tasks_per_node(text or str(size))
    return tuple(size // nodes + (place < size % nodes) for place in range(nodes))


def block(counts: tuple[int, ...], rank: int) -> int:
    """Return the index of a rank's host, if ranks fill one host after the other."""
    return next((place for place in range(len(counts)) if rank < sum(counts[: place + 1])), 0)
