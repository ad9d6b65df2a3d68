"""Launchers: `t2t launch` starts a t2t command on Cloud TPU VMs, on GKE and on SLURM clusters."""
