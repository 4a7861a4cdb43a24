"""The real vLLM on a CPU: its environment and a tiny model, made once in the user's cache; see README.md."""
