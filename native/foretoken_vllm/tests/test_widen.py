"""The widened model: what it adds to the residual stream, its sizes, and sizes that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretoken_vllm.widen import Bits, Widened

MODEL = Path(__file__).resolve().parents[3] / "model" / "hf"
Array = np.ndarray[Any, Any]


def values(bits: Bits) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def normed(stream: Array, weights: Bits, epsilon: float) -> Array:
    mean = np.mean(stream.astype(np.float64) ** 2)
    return np.asarray(stream / np.sqrt(mean + epsilon) * values(weights))


@pytest.mark.parametrize(("hidden", "size"), [(1024, None), (4096, 0.3)])
def test_a_wide_layer_adds_what_the_real_one_adds_and_a_further_layer_nothing(hidden: int, size: float | None) -> None:
    real, wide = Widened(MODEL, 256, 4), Widened(MODEL, hidden, 5, size)
    # So small that the norm's epsilon counts.
    stream = np.random.default_rng(7).standard_normal(256) * 1e-3
    padded = np.concatenate([stream, np.zeros(hidden - 256)])
    small, large, further = real.tensors(1), wide.tensors(1), wide.tensors(4)
    key = "model.layers.1."

    def feed_forward(model: Widened, tensors: dict[str, Bits], values_in: Array) -> Array:
        epsilon = model.config["rms_norm_eps"]
        inner = normed(values_in, tensors[f"{key}post_attention_layernorm.weight"], epsilon)
        gate, up = (values(tensors[f"{key}mlp.{name}_proj.weight"]) @ inner for name in ("gate", "up"))
        return np.asarray(values(tensors[f"{key}mlp.down_proj.weight"]) @ (gate * up))

    expected = feed_forward(real, small, stream)
    found = feed_forward(wide, large, padded)
    assert np.allclose(found[:256], expected, rtol=1e-4, atol=1e-6) and np.abs(expected).max() > 0.01
    assert not found[256:].any()
    # Query head i reads KV head i // group: real heads are where their KV head is, and alone have outputs.
    heads, kv_heads = wide.config["num_attention_heads"], wide.config["num_key_value_heads"]
    group = heads // kv_heads
    queries, outputs = large[f"{key}self_attn.q_proj.weight"], large[f"{key}self_attn.o_proj.weight"]
    for head in range(4):
        place = head // 2 * group + head % 2
        mine, theirs = slice(64 * head, 64 * head + 64), slice(64 * place, 64 * place + 64)
        assert (queries[theirs, :256] == small[f"{key}self_attn.q_proj.weight"][mine]).all()
        assert (outputs[:256, theirs] == small[f"{key}self_attn.o_proj.weight"][:, mine]).all()
    assert np.count_nonzero(outputs) == np.count_nonzero(small[f"{key}self_attn.o_proj.weight"])
    assert not further["model.layers.4.self_attn.o_proj.weight"].any()
    assert not further["model.layers.4.mlp.down_proj.weight"].any()
    assert further["model.layers.4.mlp.up_proj.weight"].any()


def test_noise_is_on_the_projections_alone_and_as_strong_as_asked_for() -> None:
    real, weak, other = (Widened(MODEL, 256, 4, noise=noise, seed=seed) for noise, seed in ((0, 1), (0.5, 1), (0.5, 2)))
    for layer in (1, 4):
        for name, tensor in real.tensors(layer).items():
            found, expected = values(weak.tensors(layer)[name]), values(tensor)
            if not name.endswith("_proj.weight"):
                assert (found == expected).all(), name
                continue
            drawn = (found - expected) / expected.std()
            assert drawn.std() == pytest.approx(0.5, rel=0.02)
            assert abs(np.corrcoef(drawn.flat, expected.flat)[0, 1]) < 0.03
            assert (weak.tensors(layer)[name] == Widened(MODEL, 256, 4, noise=0.5).tensors(layer)[name]).all()
            assert (weak.tensors(layer)[name] != other.tensors(layer)[name]).mean() > 0.9


def test_the_default_model_has_the_sizes_of_an_8_b_model() -> None:
    model = Widened(MODEL, 4096, 36, 7.6)
    assert model.parameters == pytest.approx(7.6e9, rel=0.01)
    assert (model.config["num_attention_heads"], model.config["num_key_value_heads"]) == (64, 16)


def test_noise_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="noise is -1; it is between 0 and 10"):
        Widened(MODEL, 256, 4, noise=-1)


@pytest.mark.parametrize(
    ("hidden", "layers", "size", "problem"),
    [
        (512, 4, None, "hidden is 512; it is 256 times 1, 4, 16 or 64"),
        (1000, 4, None, "hidden is 1000"),
        (1024, 3, None, "layers is 3; it is between 4 and 256"),
        (1024, 4, float("nan"), "size is nan; it is billions of parameters, above 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(hidden: int, layers: int, size: float | None, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Widened(MODEL, hidden, layers, size)
