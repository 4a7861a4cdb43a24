"""CALIBRATE: fit the engine model's constants to a running engine, and show how well it then predicts that engine."""
