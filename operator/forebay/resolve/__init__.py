"""Spec, policy, pool and defaults become the frozen arrays of core: the only translator."""
