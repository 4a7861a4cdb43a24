"""SIMULATE: traces, the simulated fleet, rivals, bound, benchmark. The judgement is the product's own `step`."""
