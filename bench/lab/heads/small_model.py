"""The bundled model in torch: its responses, and what its layers say at every place of them.

A layer is Qwen3's, so that a head that is made of one loads into vLLM as it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

MODEL = Path(__file__).resolve().parents[3] / "model"
END = 1359
# Responses that are drawn together.
BATCH = 512


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, values: Tensor) -> Tensor:
        return rms_norm(values, self.weight.shape, self.weight, 1e-6)


class Attention(nn.Module):
    """Reads `inputs` channels; keys and values are [batch, KV heads, places, 64]."""

    def __init__(self, inputs: int, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(inputs, heads * 64, bias=False)
        self.k_proj = nn.Linear(inputs, kv_heads * 64, bias=False)
        self.v_proj = nn.Linear(inputs, kv_heads * 64, bias=False)
        self.o_proj = nn.Linear(heads * 64, hidden, bias=False)
        self.q_norm, self.k_norm = Norm(64), Norm(64)

    def project(self, values: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of consecutive places."""
        q, k, v = (f(values).unflatten(-1, (-1, 64)) for f in (self.q_proj, self.k_proj, self.v_proj))
        return turned(self.q_norm(q), places), turned(self.k_norm(k), places), v.transpose(1, 2)

    def output(self, read: Tensor) -> Tensor:
        """`read` are the values that each head has taken, [batch, heads, places, 64]."""
        return self.o_proj(read.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self, hidden: int, channels: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, channels, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(channels, hidden, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(values)) * self.up_proj(values))


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, channels: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden), Norm(hidden)
        self.self_attn = Attention(hidden, hidden, heads, kv_heads)
        self.mlp = Mlp(hidden, channels)

    def forward(self, stream: Tensor, places: Tensor, cache: tuple[Tensor, Tensor] | None) -> Tensor:
        """With a `cache` the one place is its next; without, a text's places read those before them."""
        q, k, v = self.self_attn.project(self.input_layernorm(stream), places)
        if cache is not None:
            begin, end = int(places[0]), int(places[-1]) + 1
            for part, new in zip(cache, (k, v), strict=True):
                part[:, :, begin:end] = new
            k, v = (part[:, :, :end] for part in cache)
        read = scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        stream = stream + self.self_attn.output(read)
        return stream + self.mlp(self.post_attention_layernorm(stream))


class SmallModel(nn.Module):
    """In float32, as the tests' servers run it."""

    def __init__(self, folder: Path = MODEL / "hf") -> None:
        super().__init__()
        self.config = c = json.loads((folder / "config.json").read_text())
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        sizes = (c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["intermediate_size"])
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"])
        tensors: dict[str, Tensor] = {}
        for path in folder.glob("*.safetensors"):
            tensors |= load_file(path)
        self.load_state_dict({name.removeprefix("model."): one.float() for name, one in tensors.items()})
        self.requires_grad_(False)

    def logits(self, stream: Tensor) -> Tensor:
        return linear(self.norm(stream), self.embed_tokens.weight)

    def streams(self, tokens: Tensor) -> list[Tensor]:
        """The residual stream of texts [batch, places] behind the embedding, and behind each layer."""
        places, found = torch.arange(tokens.shape[1]), [self.embed_tokens(tokens)]
        for layer in self.layers:
            found.append(layer(found[-1], places, None))
        return found

    def respond(self, prompts: Sequence[Sequence[int]], tokens_max: int, seed: int) -> list[list[int]]:
        """A response to each at temperature 1, <|end|> in it unless it was cut."""
        drawn, found = torch.Generator().manual_seed(seed), []
        for begin in range(0, len(prompts), BATCH):
            found += self._respond(prompts[begin : begin + BATCH], tokens_max, drawn)
        return found

    @torch.inference_mode()
    def _respond(self, prompts: Sequence[Sequence[int]], tokens_max: int, drawn: torch.Generator) -> list[list[int]]:
        """All texts advance together."""
        c, longest = self.config, max(map(len, prompts)) + tokens_max
        shape = (len(prompts), c["num_key_value_heads"], 0, c["head_dim"])
        caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in self.layers]
        room = 0
        texts, ends = [list(prompt) for prompt in prompts], [len(prompt) + tokens_max - 1 for prompt in prompts]
        live = list(range(len(prompts)))
        for place in range(longest - 1):
            if place == room:
                room = min(longest, 2 * room + 64)
                caches = [tuple(_kept(part, list(range(len(live))), place, room) for part in one) for one in caches]
            stream = self.embed_tokens(torch.tensor([[texts[i][place]] for i in live]))
            for layer, cache in zip(self.layers, caches, strict=True):
                stream = layer(stream, torch.tensor([place]), cache)
            sampled = torch.multinomial(self.logits(stream[:, 0]).softmax(-1), 1, generator=drawn)[:, 0].tolist()
            for i, token in zip(live, sampled, strict=True):
                if place + 1 == len(texts[i]):
                    texts[i].append(token)
            going = [row for row, i in enumerate(live) if texts[i][-1] != END and place + 1 < ends[i]]
            # What has ended goes when a fifth has: to copy the others costs more than to compute a few for nothing.
            if len(going) < 0.8 * len(live):
                caches = [tuple(_kept(part, going, place + 1, room) for part in one) for one in caches]
                live = [live[row] for row in going]
            if not live:
                break
        return [cut(text[len(prompt) :], tokens_max) for text, prompt in zip(texts, prompts, strict=True)]


def _kept(part: Tensor, rows: list[int], used: int, room: int) -> Tensor:
    """Of a cache's rows the first `used` places, in one of `room`."""
    kept = part.new_empty((len(rows), part.shape[1], room, part.shape[3]))
    kept[:, :, :used] = part[rows, :, :used]
    return kept


def cut(response: list[int], tokens_max: int) -> list[int]:
    """To its end."""
    length = response.index(END) + 1 if END in response else len(response)
    return response[: min(length, tokens_max)]


def turned(values: Tensor, places: Tensor) -> Tensor:
    """Of [batch, places, heads, 64], by RoPE, as [batch, heads, places, 64]."""
    angles = places[:, None] / 10_000 ** (torch.arange(32) / 32)
    cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
    values = values.transpose(1, 2)
    first, second = values.chunk(2, -1)
    return values * cos + torch.cat([-second, first], -1) * sin


def prompts() -> list[list[int]]:
    """The bundled ones as tokens."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(MODEL / "hf" / "tokenizer.json"))
    lines = (MODEL / "prompts.jsonl").read_text().splitlines()
    return [tokenizer.encode(json.loads(line)["prompt"], add_special_tokens=False).ids for line in lines]
