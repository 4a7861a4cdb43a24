"""Step times of a model and a GPU that nobody has measured together: what bandwidth and arithmetic allow.

The shares below were set so that the rows of `derived-linear-fits.csv` are met: a decode step within 1.6 times, a
prompt within 2.2 times, on every GPU but those that do tensor parallelism over PCIe (L40S), which this cannot see.
"""

from __future__ import annotations

from forebay.engine_model.step_time import FS_PER_PS, PS_PER_S, StepTimes

BANDWIDTH_WEIGHTS_PERCENT = 90  # of the memory's peak, while weights stream through large matrix products
BANDWIDTH_KV_PERCENT = 80  # of the peak, while attention gathers blocks of 16 tokens
LAYER_OVERHEAD_PS = 40_000_000  # launches and element-wise kernels of one layer
DECODE_FLOPS_PERCENT = 130  # a decode's extra arithmetic hides partly behind the weights that are read anyway
PREFILL_FLOPS_PERCENT = {16: 85, 8: 60}  # of the dense peak that prompts reach, by bits of the arithmetic
ALL_REDUCE_PERCENT = 130  # a prompt token's price with tensor parallelism over NVLink
PAIR_PER_MILLION = (
    40  # p2/p1: attention's share of a prompt token's price for each token before it; 20 to 60 in the fits
)


def roofline(
    *,
    weight_bytes: int,
    active_parameters: int,
    layers: int,
    kv_bytes_per_token: int,
    tensor_parallel: int,
    flops_per_s: int,
    arithmetic_bits: int,
    bytes_per_s: int,
) -> StepTimes:
    """Estimate the five constants; the engine's own overhead a step is not in them.

    Parameters
    ----------
    weight_bytes
        Weights on one GPU; of a mixture of experts all of them, because a busy batch touches nearly every expert.
    active_parameters
        Parameters that one token is multiplied with, of the whole model.
    layers
        All layers.
    kv_bytes_per_token
        On one GPU.
    tensor_parallel
        GPUs that share the model.
    flops_per_s, arithmetic_bits
        Dense peak of one GPU in the arithmetic used, and that arithmetic's width: 16 or 8.
    bytes_per_s
        Peak of one GPU's memory.
    """
    token_flops = 2 * active_parameters * PS_PER_S // (tensor_parallel * flops_per_s)
    prompt_percent = 100 if tensor_parallel == 1 else ALL_REDUCE_PERCENT
    p1_ps = token_flops * prompt_percent // PREFILL_FLOPS_PERCENT[arithmetic_bits]
    weights_ps = weight_bytes * PS_PER_S * 100 // (bytes_per_s * BANDWIDTH_WEIGHTS_PERCENT)
    return StepTimes(
        c0_ps=weights_ps + LAYER_OVERHEAD_PS * layers,
        c1_ps=token_flops * 100 // DECODE_FLOPS_PERCENT,
        c2_ps=kv_bytes_per_token * PS_PER_S * 100 // (bytes_per_s * BANDWIDTH_KV_PERCENT),
        p1_ps=p1_ps,
        p2_fs=p1_ps * FS_PER_PS * PAIR_PER_MILLION // 1_000_000,
    )
