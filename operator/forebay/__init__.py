"""Forebay: an operator and autoscaler for GPU inference fleets. Folders are the data path: docs/designs/0001."""
