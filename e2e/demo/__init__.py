"""The demo: a fleet on a real Kubernetes, recorded traffic, a live view and a scorecard. `make demo` runs it."""
