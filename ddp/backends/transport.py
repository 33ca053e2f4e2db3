"""The transport of a rank that has a coordinator."""

from __future__ import annotations

import torch

from ddp.comm.transports import threads
from ddp.comm.transports.base import Transport, TransportConfig, choose
from ddp.replica.task import Job


def transport_of(job: Job, rank: int, device: torch.device) -> Transport:
    """Return the transport that `job` asks for. Raises ValueError if it does not work here.

    A collective in which nobody can be told to be gone lasts half of what a rank may be silent.
    """
    if job.threads is not None:
        return threads.Transport(job.threads, rank, device)
    size, limit_s = job.world_size, job.deadline_s / 2
    config = TransportConfig(job.scratch, rank, size, device, limit_s, meet=job.meet, host_ranks=job.host_ranks)
    return choose(job.transport, config)
