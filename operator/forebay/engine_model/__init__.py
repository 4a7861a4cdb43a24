"""DECIDE: how a paged-attention engine spends time and memory. Pure."""
