"""The inside of a replica: a supervisor beside the engine, and the emulated engine."""
