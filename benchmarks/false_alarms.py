"""How often `diagnose` alarms on a right implementation: random dimensions and conventions, one dtype.

    PYTHONPATH=.:tests python benchmarks/false_alarms.py 1000 bfloat16

An implementation written by hand (tests/plain) runs on the battery's short cases for each random configuration. It is
an alarm when an output leaves the likely radius, or lies so many times its rounding away from the right one that a
fault could explain it better.
"""
import random
import sys
from functools import partial

from plain.layer import layer
from tqdm import tqdm

from mla_lab.config import MLAConfig, Yarn
from mla_lab.diagnosis.cases import layer_cases
from mla_lab.diagnosis.observe import observe
from mla_lab.diagnosis.search import BETTER, BITS, HEAVY, MATCH, Search, matching


def draw(rng: random.Random) -> MLAConfig:
    """A layer that could be somebody's."""
    yarn = rng.random() < 0.6 and Yarn(factor=rng.choice([2, 4, 16, 40]), mscale=rng.choice([1.0, 0.707, 1.5]),
                                       original_max_position_embeddings=rng.choice([16, 64, 4096]),
                                       mscale_all_dim=rng.choice([1.0, 0.707, 0.3]))
    return MLAConfig(
        hidden_size=rng.randint(16, 96), num_attention_heads=rng.randint(1, 9), kv_lora_rank=rng.randint(8, 64),
        q_lora_rank=rng.choice([None, rng.randint(8, 48)]), qk_nope_head_dim=rng.randint(4, 32),
        qk_rope_head_dim=2 * rng.randint(1, 12), v_head_dim=rng.randint(3, 32),
        rope_theta=rng.choice([100.0, 1e4, 1e6]),
        rope_scaling=yarn or None, rms_norm_eps=rng.choice([1e-5, 1e-6]), rope_interleave=rng.random() < 0.8)


def alarmed(config: MLAConfig, dtype: str, mode: str) -> str:
    """Why there is an alarm; empty if there is none."""
    cases = [c for c in layer_cases(config) if c.name not in HEAVY]
    seen = observe(partial(layer, mode=mode), cases, dtype, "torch")
    if seen.problems:
        return str(seen.problems[0])
    search, bits = Search(cases, seen.outputs, dtype, known=()), BITS[dtype][0]
    inside, score = search.inside(bits), search.score_of_right(bits)
    if inside <= 1 and score <= BETTER * matching(bits) / MATCH:
        return ""
    return f"{inside:.2g} of the radius, {score:.2g} times the noise"


def main(count: int, dtype: str) -> int:
    rng, alarms = random.Random(2026), 0
    for i in tqdm(range(count), disable=None):
        config = draw(rng)
        why = alarmed(config, dtype, ("absorb", "naive")[i % 2])
        if why:
            alarms += 1
            print(f"{why}: {config}", flush=True)
    print(f"{alarms} false alarms on {count} random configurations in {dtype}")
    return alarms > 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
