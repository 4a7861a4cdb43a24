"""A real Kubernetes on this one machine, without registry, container engine or GPU.

`cluster.Cluster` is the way in for tests, `python -m e2e.cluster` for people. README.md tells how the parts fit.
"""
