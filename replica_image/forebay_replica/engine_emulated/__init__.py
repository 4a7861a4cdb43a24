"""An engine without a GPU: vLLM's API and metrics, real queues, blocks and batches, and steps that only take time.

`python -m forebay_replica.engine_emulated --host 0.0.0.0 --port 8000`, configured like any replica by the environment
(`wire.replica_config`). What is modelled is in `forebay.engine_model`; here are the clock, the dice and the sockets.
"""
