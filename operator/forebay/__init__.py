"""Forebay: an operator and autoscaler for GPU inference fleets. The folders are the data path; read docs/designs/0001."""
