"""The two forms that are timed against each other: the same numbers, and the FLOPs they are counted by."""
import numpy as np
import pytest

from mla_lab.arrays import get_backend
from mla_lab.config import MLAConfig
from mla_lab.kernels import timing
from mla_lab.kernels.counts import crossover
from mla_lab.kernels.crossing import both_forms, crossing

CONFIG = MLAConfig(hidden_size=29, num_attention_heads=3, kv_lora_rank=17, qk_nope_head_dim=7, qk_rope_head_dim=4,
                   v_head_dim=5, q_lora_rank=11)


def test_both_forms_compute_the_same(backend):
    naive, absorbed = (c.run() for c in both_forms(CONFIG, 4, 6, backend))
    assert np.allclose(np.asarray(naive.heads), np.asarray(absorbed.heads), atol=1e-12)
    assert np.asarray(naive.weights)[0, 0, 0, 7:].sum() == 0, "a query sees what comes after it"
    assert (np.asarray(naive.weights)[0, 0, 3] > 0).all()


@pytest.mark.parametrize("new", [1, 5])
def test_both_forms_do_the_counted_work(new):
    pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode
    for c in both_forms(CONFIG, new, 12, get_backend("torch", "float32")):
        with FlopCounterMode(display=False) as counter:
            c.run()
        assert counter.get_total_flops() == c.work.flops, c.name


def test_the_ratio_is_that_of_absorbed_to_naive(monkeypatch):
    times = {"naive": 2.0, "absorb": 3.0}  # by the mode, the last argument of `attend`

    class Clock:
        def settle(self):
            pass

        def __call__(self, run, calls):
            return times[run.args[-1]], None

    monkeypatch.setattr(timing, "CPUClock", Clock)
    found = crossing(CONFIG, [2, 50], 100000, get_backend("numpy", "float32"), rounds=1)
    assert [new for new, _, _ in found] == [2, 50] and [time for _, time, _ in found] == [1.5, 1.5]
    assert found[0][2] < 1 < found[1][2] and 2 < crossover(CONFIG, 100000) < 50
