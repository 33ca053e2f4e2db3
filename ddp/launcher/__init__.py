"""What a launcher says of this process, and how the coordinator's host is found. Starts nothing, knows no run.

`environment` reads the variables of torchrun, SLURM, MPI and Ray, `hostlist` SLURM's lists of hosts, `coordinator` looks for
an address that works, `interfaces` knows those of this host.
"""
