"""Weights and norms: FP8 blocks, RMSNorm, and how kv_b_proj is cut."""
from __future__ import annotations

import torch

BLOCK = 128


def wide(x):
    """At least float32: bfloat16 is for storage and products, not for norms, tables and the softmax."""
    return x if x.dtype == torch.float64 else x.float()


def dequantize(codes, scales, fault=None):
    """FP8 codes [o, i] times the scale of each 128 x 128 block."""
    codes = codes.float()
    if fault == "fp8_scales_ignored":
        return codes
    if fault == "fp8_one_scale":
        return codes * scales[0, 0]
    o, i = codes.shape
    scales = scales.float().repeat_interleave(BLOCK, 0)[:o].repeat_interleave(BLOCK, 1)[:, :i]
    return codes / scales if fault == "fp8_scales_divided" else codes * scales


def load(weights, dtype, fault=None):
    """All weights in one dtype, FP8 ones multiplied out."""
    out = {}
    for name, w in weights.items():
        if name.endswith("_scale_inv"):
            continue
        if name + "_scale_inv" in weights:
            w = dequantize(w, weights[name + "_scale_inv"], fault)
        out[name] = w.to(dtype)
    return out


def rms_norm(x, weight, eps, fault=None):
    """x / sqrt(mean(x^2) + eps) * weight."""
    if fault == "norm_eps_wrong":
        eps = 1e-6  # what the class was written with
    y = wide(x)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y if fault == "norm_gain_wrong" else y * wide(weight)).to(x.dtype)


def norm_latent(latent, rope_key, weight, eps, fault=None):
    """Latent [b, t, r] and rope key [b, t, p] as attention gets them: only the latent is normed."""
    if fault == "latent_not_normed":
        return latent, rope_key
    if fault == "norm_over_joint_vector":  # before the split; the gain has r elements
        joint = rms_norm(torch.cat([latent, rope_key], -1), torch.ones(1, device=weight.device), eps)
        latent, rope_key = joint.split([latent.shape[-1], rope_key.shape[-1]], -1)
        return (wide(latent) * wide(weight)).to(latent.dtype), rope_key
    normed = rms_norm(latent, weight, eps, fault)
    if fault == "latent_normed_twice":
        normed = rms_norm(normed, weight, eps)
    return normed, rope_key


def split_kv_b(kv_b, config, fault=None):
    """kv_b_proj [h (n+v), r] to W_UK [h, n, r] and W_UV [h, r, v]: per head n rows for keys, then v for values."""
    h, n, v = config["num_attention_heads"], config["qk_nope_head_dim"], config["v_head_dim"]
    if fault == "kv_b_transposed" and kv_b.shape[0] == kv_b.shape[1]:
        kv_b = kv_b.T
    r = kv_b.shape[1]
    if fault == "all_k_then_all_v":
        w_uk, w_uv = kv_b[: h * n].reshape(h, n, r), kv_b[h * n :].reshape(h, v, r)
    elif fault == "value_rows_first":
        w_uv, w_uk = kv_b.reshape(h, v + n, r).split([v, n], 1)
    else:
        w_uk, w_uv = kv_b.reshape(h, n + v, r).split([n, v], 1)
    return w_uk, w_uv.transpose(1, 2)
