"""Fused attention kernels: one file per kind, imported on first use by dispatch.py."""
