"""Contracts between processes: what operator, gateway and replica say to each other. Imports nothing of Forebay."""
