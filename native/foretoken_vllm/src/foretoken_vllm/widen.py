"""`python -m foretoken_vllm.widen`: a small model made wider and deeper, with its text and a large model's price.

The values that widening adds to the residual stream are zero, so every sum is as it was. RMSNorm takes the mean over f
times as many of them: its weights are divided by sqrt(f) and its epsilon by f, both exact in bfloat16, for f is a power
of four. Noise stands where only zeros are read, and where output projections ignore it: in further heads, KV heads and
feed-forward channels, and in whole layers, which add nothing.

With noise on its projections the model says something else the more often, the more of it there is: a copy of its own
size that was weakened so is a draft model (bench/lab/heads/acceptance.py measures how often it is right).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

Bits = np.ndarray[Any, np.dtype[np.uint16]]
"""Of bfloat16 values."""
_ONE = 0x3F80
_OUTPUTS = ("self_attn.o_proj", "mlp.down_proj")
_NOISE = 0.02
_LAYERS_MAX = 256
_SIZE_MAX = 1000
_WEAK_MAX = 10


class Widened:
    """The wide model's sizes, and its tensors. Raises ValueError, with the bound in its text; OSError: no model."""

    def __init__(
        self,
        source: Path,
        hidden: int | None = None,
        layers: int | None = None,
        size: float | None = None,
        noise: float = 0.0,
        seed: int = 1,
    ) -> None:
        """`hidden` and `layers` are those of `source` unless given. `noise`: over the projections' own deviation.

        `size`: billions of parameters; then four query heads share a KV head, and feed-forward channels fill up. Else
        there are as many times more KV heads and channels as heads.
        """
        if not 0 <= noise <= _WEAK_MAX:
            raise ValueError(f"noise is {noise}; it is between 0 and {_WEAK_MAX}")
        self._weak, self._seed = noise, seed
        self._real = real = json.loads((source / "config.json").read_text())
        hidden = real["hidden_size"] if hidden is None else hidden
        layers = real["num_hidden_layers"] if layers is None else layers
        self._source, self._factor = source, hidden // real["hidden_size"]
        factor = self._factor
        if hidden % real["hidden_size"] or factor not in (1, 4, 16, 64):
            raise ValueError(f"hidden is {hidden}; it is {real['hidden_size']} times 1, 4, 16 or 64")
        if not real["num_hidden_layers"] <= layers <= _LAYERS_MAX:
            raise ValueError(f"layers is {layers}; it is between {real['num_hidden_layers']} and {_LAYERS_MAX}")
        heads, head = real["num_attention_heads"] * factor, real["head_dim"]
        kv_heads, channels = real["num_key_value_heads"] * factor, real["intermediate_size"] * factor
        if size is not None:
            if not 0 < size <= _SIZE_MAX:
                raise ValueError(f"size is {size}; it is billions of parameters, above 0 and up to {_SIZE_MAX}")
            kv_heads = max(real["num_key_value_heads"], heads // 4)
            rest = (size * 1e9 - real["vocab_size"] * hidden) / layers / hidden - 2 * head * (heads + kv_heads)
            channels = max(real["intermediate_size"], round(rest / 192) * 64)
        self.layers, self.hidden = layers, hidden
        # Channels of each projection, beside those of the residual stream.
        self._channels = {f"self_attn.{name}_proj": kv_heads * head for name in "kv"}
        self._channels |= {f"self_attn.{name}_proj": heads * head for name in "qo"}
        self._channels |= {f"mlp.{name}_proj": channels for name in ("gate", "up", "down")}
        self.parameters = self.hidden * (layers * sum(self._channels.values()) + real["vocab_size"])
        sizes = {"hidden_size": self.hidden, "num_hidden_layers": layers, "intermediate_size": channels}
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
        more = {"rms_norm_eps": real["rms_norm_eps"] / factor, "layer_types": ["full_attention"] * layers}
        self.config = {**real, **sizes, **more}
        # Real query heads stand with the KV head that they read, which is in its own place.
        group, own = heads // kv_heads, real["num_attention_heads"] // real["num_key_value_heads"]
        first = [i // own * group + i % own for i in range(real["num_attention_heads"])]
        self._queries = np.concatenate([np.arange(head * i, head * (i + 1)) for i in first])
        padding = np.random.default_rng(1).standard_normal(1_000_003, np.float32) * np.float32(_NOISE)
        self._noise: Bits = (padding.view(np.uint32) >> 16).astype(np.uint16)
        self._data = np.memmap(source / "model.safetensors", np.uint8, "r")
        self._begin = 8 + int(self._data[:8].view(np.uint64)[0])
        self._header = json.loads(self._data[8 : self._begin].tobytes())

    def _read(self, name: str) -> Bits:
        entry = self._header[name]
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is {entry['dtype']}; only BF16 is widened")
        begin, end = (self._begin + offset for offset in entry["data_offsets"])
        bits: Bits = self._data[begin:end].view(np.uint16).reshape(entry["shape"])
        return bits

    def _weakened(self, name: str, layer: int) -> Bits:
        bits = self._read(name)
        if self._weak == 0:
            return bits
        values = np.asarray((bits.astype(np.uint32) << 16).view(np.float32))
        drawn = np.random.default_rng([self._seed, layer, *name.encode()]).standard_normal(bits.shape, np.float32)
        noisy: Bits = ((values + drawn * np.float32(self._weak * values.std())).view(np.uint32) >> 16).astype(np.uint16)
        return noisy

    def _norm(self, name: str) -> Bits:
        wide = np.full(self.hidden, _ONE, np.uint16)
        values = (self._read(name).astype(np.uint32) << 16).view(np.float32) / np.float32(math.sqrt(self._factor))
        wide[: len(values)] = values.view(np.uint32) >> 16
        return wide

    def tensors(self, layer: int) -> dict[str, Bits]:
        """Those of a layer; behind the last one, embeddings and norm."""
        if layer == self.layers:
            words = self._read("model.embed_tokens.weight")
            wide = np.pad(words, ((0, 0), (0, self.hidden - words.shape[1])))
            return {"model.embed_tokens.weight": wide, "model.norm.weight": self._norm("model.norm.weight")}
        found: dict[str, Bits] = {}
        prefix, is_real = f"model.layers.{layer}.", layer < self._real["num_hidden_layers"]
        for name, channels in self._channels.items():
            key = f"{prefix}{name}.weight"
            # An input projection's channels are its rows, an output projection's its columns.
            is_output = name in _OUTPUTS
            shape = (channels, self.hidden)
            wide = np.zeros(shape[::-1], np.uint16).T if is_output else np.resize(self._noise, shape)
            if is_real:
                weights = self._weakened(key, layer)
                weights = weights.T if is_output else weights
                rows = self._queries if name[-6:] in ("q_proj", "o_proj") else np.arange(len(weights))
                wide[rows, : weights.shape[1]] = weights
            found[key] = wide.T if is_output else wide
        for name in ("input_layernorm", "post_attention_layernorm"):
            key = f"{prefix}{name}.weight"
            found[key] = self._norm(key) if is_real else np.full(self.hidden, _ONE, np.uint16)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            key = f"{prefix}{name}.weight"
            found[key] = self._read(key) if is_real else np.full(self._real["head_dim"], _ONE, np.uint16)
        return found

    def write(self, out: Path) -> None:
        """The model's folder, which must not be there: a file for each layer."""
        out.mkdir(parents=True)
        for path in self._source.iterdir():
            if path.suffix != ".safetensors":
                shutil.copy(path, out)
        (out / "config.json").write_text(json.dumps(self.config))
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            parts = list(pool.map(lambda layer: self._write(out, layer), range(self.layers + 1)))
        places = {tensor: name for part in parts for tensor, name in part.items()}
        index = {"metadata": {"total_size": 2 * self.parameters}, "weight_map": places}
        (out / "model.safetensors.index.json").write_text(json.dumps(index))

    def _write(self, out: Path, layer: int) -> dict[str, str]:
        path, tensors, at = out / f"model-{layer:05d}.safetensors", self.tensors(layer), 0
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for name, bits in tensors.items():
            header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": [at, at + bits.nbytes]}
            at += bits.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for bits in tensors.values():
                file.write(np.ascontiguousarray(bits).data)
        return dict.fromkeys(tensors, path.name)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m foretoken_vllm.widen", description=__doc__)
    parser.add_argument("source", type=Path, help="folder of a Qwen3 model: one safetensors file, tied embeddings")
    parser.add_argument("out", type=Path, help="folder to be made")
    parser.add_argument("--hidden", type=int, default=1024, help="hidden size: 1, 4, 16 or 64 times the model's")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--noise", type=float, default=0.0, help="on the projections, over their own deviation")
    parser.add_argument("--seed", type=int, default=1, help="of that noise")
    given = parser.parse_args(arguments)
    try:
        model = Widened(given.source, given.hidden, given.layers, noise=given.noise, seed=given.seed)
        model.write(given.out)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{given.out}: {model.parameters / 1e6:.1f} M parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
