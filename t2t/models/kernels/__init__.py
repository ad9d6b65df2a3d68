"""Fused attention kernels: one file per kind, imported when attention runs on it; see dispatch.py."""
