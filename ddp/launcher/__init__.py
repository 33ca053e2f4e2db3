"""Reads from a launcher's variables which process this is, and finds the address of rank 0's host. Starts nothing, knows no
run.

`environment` reads the variables of torchrun, SLURM, MPI and Ray, `slurm_step` SLURM's of a step, `hostlist` its host lists;
`rank0_address` finds an address of rank 0 that works, `interfaces` lists those of this host.
"""
