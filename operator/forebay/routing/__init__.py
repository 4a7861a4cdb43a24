"""DECIDE: which replica answers a request, and who waits. Pure."""
