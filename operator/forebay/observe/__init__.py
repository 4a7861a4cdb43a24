"""OBSERVE: the cluster, the replicas and the gateways become one Snapshot."""
