"""Tests of the whole path on a real Kubernetes: the cluster, the words to write scenarios in, the scenarios."""
