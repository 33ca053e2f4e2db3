"""Reads a launcher's environment variables into a `Placement`: the rank of this process, the number of ranks, the host.

The innermost launcher counts: torchrun inside of srun is torchrun. Reads only variables, so tests can use a table of
environments.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from ddp.launcher.hostlist import hosts as host_names
from ddp.launcher.slurm_step import REMEDY, block, hides_step, in_step, job_of, step_of, tasks, tasks_by_host
from ddp.launcher.variables import Environment, number, text

RAY, MPI = "ray", "mpi"
MOST_PORT = 65_535
LOWEST_PORT, PORTS = 10_000, 20_000
"""Range of ports for rank 0, below the ephemeral ports of operating systems."""


@dataclass(frozen=True)
class Placement:
    """The place of this process among those that a launcher has started."""

    launcher: str
    """`torchrun`, `slurm`, `mpi`, `ray`, or the value of `DDP_LAUNCHER`."""
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    host_ranks: int = 1
    """Number of ranks on this host."""
    node: int = 0
    """Index of this host; rank 0's host is 0."""
    nodes: int = 1
    hosts: tuple[str, ...] = ()
    """Name of each host, by index; empty: the launcher does not provide them."""
    job: str = ""
    """The launcher's id of the job; JOB_TASK for a job array."""
    restarts: int = 0
    """How often the launcher has restarted the processes."""
    address: str = ""
    """Address or name of rank 0's host; empty: unknown."""
    port: int = 0
    """Port of the store of all ranks; 0: not set, rank 0 opens the store at `own_port`."""
    step: str = ""
    """Distinguishes this start from other starts of the same job."""

    @property
    def own_port(self) -> int:
        """Return a port that all ranks of this start compute, and that other starts hardly ever get."""
        return LOWEST_PORT + crc32(f"{self.job}.{self.step}".encode()) % PORTS


def read(environ: Environment) -> Placement | None:
    """Return the placement that the variables describe; None: no launcher set them. Raises ValueError if they
    contradict."""
    for reader in (_torchrun, _declared, _ray, _open_mpi, _pmi, _pmix, _slurm):
        placement = reader(environ)
        if placement is not None:
            _check(placement)
            return placement
    return None


def _torchrun(environ: Environment) -> Placement | None:
    if "TORCHELASTIC_RUN_ID" not in environ or "WORLD_SIZE" not in environ:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    restarts = number(environ, "TORCHELASTIC_RESTART_COUNT", 0)
    if number(environ, "WORLD_SIZE") == 1:
        return Placement("torchrun", job=environ["TORCHELASTIC_RUN_ID"], restarts=restarts)
    rank, size, local, beside, node, nodes = (number(environ, name) for name in names)
    return Placement(
        *("torchrun", rank, size, local, beside, node, nodes),
        job=environ["TORCHELASTIC_RUN_ID"],
        restarts=restarts,
        address=text(environ, "MASTER_ADDR"),
        port=number(environ, "MASTER_PORT"),
        step=str(restarts),
    )


def _declared(environ: Environment) -> Placement | None:
    """Read the generic variables DDP_LAUNCHER (the launcher's name), RANK, WORLD_SIZE and MASTER_ADDR; and LOCAL_RANK,
    LOCAL_WORLD_SIZE, NODE_RANK, MASTER_PORT, DDP_JOB, DDP_RESTARTS and DDP_HOSTS, which default to one rank on each
    host."""
    if not environ.get("DDP_LAUNCHER"):
        return None
    rank, size = number(environ, "RANK", 0), number(environ, "WORLD_SIZE", 1)
    local, beside = number(environ, "LOCAL_RANK", 0), max(number(environ, "LOCAL_WORLD_SIZE", 1), 1)
    node, restarts = number(environ, "NODE_RANK", rank // beside), number(environ, "DDP_RESTARTS", 0)
    return Placement(
        *(
            environ["DDP_LAUNCHER"],
            rank,
            size,
            local,
            beside,
            node,
            _nodes(environ["DDP_LAUNCHER"], size, beside, node),
        ),
        hosts=tuple(filter(None, environ.get("DDP_HOSTS", "").split(","))),
        job=environ.get("DDP_JOB", ""),
        restarts=restarts,
        address=text(environ, "MASTER_ADDR") if size > 1 else "",
        port=number(environ, "MASTER_PORT", 0),
        step=str(restarts),
    )


def _ray(environ: Environment) -> Placement | None:
    """Read the variables that Ray Train sets in its workers. Other tasks and actors of Ray have no rank."""
    if not {"RAY_JOB_ID", "RAY_RAYLET_PID"} & environ.keys() or not {"RANK", "NODE_RANK"} <= environ.keys():
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    rank, size, local, beside, node = (number(environ, name) for name in names)
    address = environ.get("MASTER_ADDR", "")
    return Placement(
        *(RAY, rank, size, local, beside, node, _nodes(RAY, size, beside, node)),
        job=environ.get("RAY_JOB_ID", ""),
        address=address,
        port=number(environ, "MASTER_PORT", 0) if address else 0,
    )


def _open_mpi(environ: Environment) -> Placement | None:
    """Read the variables of Open MPI, or of MVAPICH 2 and 3, which have the same endings."""
    for prefix in ("OMPI", "MV2", "MVP"):
        if f"{prefix}_COMM_WORLD_RANK" in environ:
            names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
            rank, size, local, beside = (number(environ, f"{prefix}_COMM_WORLD_{name}") for name in names)
            start = (
                environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or environ.get("MPIRUN_ID", "")
            )
            return _mpi(environ, rank, size, local, beside, start)
    return None


def _pmi(environ: Environment) -> Placement | None:
    """Read the PMI variables of MPICH and its relatives. SLURM sets them too, but its own say more."""
    if not {"PMI_RANK", "PMI_SIZE"} <= environ.keys():
        return None
    rank, size = number(environ, "PMI_RANK"), number(environ, "PMI_SIZE")
    if in_step(environ) and (environ.get("SLURM_PROCID"), environ.get(tasks(environ), "")) == (str(rank), str(size)):
        return None
    if hides_step(environ) and environ["SLURM_PROCID"] == str(rank) and not any(map(_of_mpirun, environ)):
        return None  # refused with all ranks of the step
    local = number(environ, "MPI_LOCALRANKID", rank)
    return _mpi(environ, rank, size, local, number(environ, "MPI_LOCALNRANKS", size), environ.get("PMI_JOBID", ""))


def _of_mpirun(name: str) -> bool:
    return name == "MPI_LOCALRANKID" or name.startswith("HYDI")


def _pmix(environ: Environment) -> None:
    """Refuse a rank of PMIx outside of SLURM, because its variables do not give the number of ranks."""
    if "PMIX_RANK" in environ and not in_step(environ):
        raise ValueError(
            f"PMIX_RANK={environ['PMIX_RANK']}, but no variable says of how many ranks: start them with mpirun or torchrun"
        )


def _mpi(environ: Environment, rank: int, size: int, local: int, beside: int, start: str) -> Placement:
    """Return the placement of a process of mpirun, which describes its own host only. Ranks must fill host after host, or
    be assigned to hosts in turn."""
    if beside < 1 or size < 1 or size % beside:
        raise ValueError(
            f"mpirun: {size} ranks, {beside} of them on this host: start as many on each host (mpirun --npernode {beside})"
        )
    nodes = size // beside
    filled, dealt = rank % beside == local, rank // nodes == local
    if not (filled or dealt):
        raise ValueError(
            f"mpirun: rank {rank} is the {local}th of its host: start them with mpirun --map-by ppr:N:node"
        )
    restarts = number(environ, "SLURM_RESTART_COUNT", 0)
    names = host_names(environ["SLURM_JOB_NODELIST"]) if environ.get("SLURM_JOB_NODELIST") else ()
    return Placement(
        *(MPI, rank, size, local, beside, rank // beside if filled else rank % nodes, nodes),
        hosts=names if len(names) == nodes else (),  # unknown if ranks use only some of the job's hosts
        job=job_of(environ) or start,
        address=environ.get("MASTER_ADDR", ""),
        port=number(environ, "MASTER_PORT", 0),
        step=f"{start}.{restarts}" if job_of(environ) else "",
        restarts=restarts,
    )


def _slurm(environ: Environment) -> Placement | None:
    several = hides_step(environ) or (in_step(environ) and environ.get(tasks(environ)) != "1")
    if "SLURM_JOB_ID" not in environ and not several:
        return None
    job = job_of(environ)
    restarts = number(environ, "SLURM_RESTART_COUNT", 0)
    step = f"{environ.get('SLURM_STEP_ID') or environ.get('SLURM_STEPID') or 'batch'}.{restarts}"
    if not several and not in_step(environ):  # without srun, a batch script starts single processes
        return Placement("slurm", job=job, restarts=restarts, step=step)
    rank = number(environ, "SLURM_PROCID")
    if not job or not tasks(environ) or not step_of(environ):
        lacks = "SLURM_JOB_ID" if not job else "SLURM_STEP_ID" if tasks(environ) else "SLURM_STEP_NUM_TASKS"
        raise ValueError(f"slurm: SLURM_PROCID is {rank}, but {lacks} is not set: {REMEDY}")
    size = number(environ, tasks(environ))
    sources = [name for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") if environ.get(name)]
    source = sources[0] if sources else "SLURM_STEP_NODELIST"
    names = host_names(text(environ, source))
    nodes = number(environ, "SLURM_STEP_NUM_NODES", len(names))
    counts = tasks_by_host(environ, size, nodes)
    node = number(environ, "SLURM_NODEID", block(counts, rank))
    if not len(names) == nodes == len(counts):
        lists = f"{source} names {len(names)} hosts, SLURM_STEP_TASKS_PER_NODE {len(counts)}"
        raise ValueError(f"slurm: {lists}, SLURM_STEP_NUM_NODES is {nodes}: were variables of another step kept?")
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        if environ.get(name, str(value)) != str(value):
            raise ValueError(f"slurm: {name}={environ[name]}, but srun says {value}: unset {name}")
    return Placement(
        *("slurm", rank, size, number(environ, "SLURM_LOCALID"), counts[min(node, len(counts) - 1)], node, nodes),
        hosts=names,
        job=job,
        restarts=restarts,
        address=environ.get("MASTER_ADDR", ""),
        port=number(environ, "MASTER_PORT", 0),
        step=step,
    )


def _check(placement: Placement) -> None:
    """Raises ValueError if the numbers are out of range."""
    own = placement
    for name, value, bound, of in (
        ("rank", own.rank, own.world_size, "ranks"),
        ("local rank", own.local_rank, own.host_ranks, "ranks of its host"),
        ("place of the host", own.node, own.nodes, "hosts"),
    ):
        if not 0 <= value < bound:
            raise ValueError(
                f"{own.launcher}: the {name} is {value}, of {bound} {of}: were variables of another launcher kept?"
            )
    if own.port > MOST_PORT:
        raise ValueError(f"{own.launcher}: MASTER_PORT={own.port}: ports are 0 to {MOST_PORT}")
    if own.host_ranks > own.world_size or own.nodes > own.world_size:
        where = f"{own.host_ranks} ranks on this host, {own.nodes} hosts"
        raise ValueError(
            f"{own.launcher}: {where}, but {own.world_size} ranks: were variables of another launcher kept?"
        )


def _nodes(launcher: str, size: int, beside: int, node: int) -> int:
    """Return the number of hosts, if ranks are spread evenly."""
    if beside < 1:
        raise ValueError(f"{launcher}: LOCAL_WORLD_SIZE is {beside}: a host has at least one rank")
    return max(-(-size // beside), node + 1)
