"""An EAGLE-3 head for the bundled model, in the form that vLLM's method `eagle3` loads: one layer of 0.6 M parameters.

It reads the target's residual streams at a place and the token behind it, and says the token after that. In place of
the streams its further draft tokens have what it put out for the one before: so it is trained as it drafts ("training-
time test"): unrolled for some steps along the text, where each step reads the real places up to where the draft begins,
and its own steps from there.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from acceptance import PLACES
from safetensors.torch import load_file, save_file
from small_model import Attention, Mlp, Norm, SmallModel
from torch import Tensor, nn
from torch.nn.functional import linear

# Behind so many of the target's layers its residual stream is read.
STREAMS = (2, 3, 4)
HEADS = 2
CHANNELS = 192


class HeadLayer(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (Norm(hidden) for _ in range(3))
        self.self_attn = Attention(2 * hidden, hidden, HEADS, HEADS)
        self.mlp = Mlp(hidden, CHANNELS)

    def forward(self, hidden: Tensor, embeds: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        """`steps` are the keys and values of all steps before; this one's are added."""
        values = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], -1)
        q, k, v = self.self_attn.project(values, torch.arange(values.shape[1]))
        steps.append((k, v))
        stream = hidden + self.self_attn.output(_read(q, steps))
        return stream + self.mlp(self.post_attention_layernorm(stream))


def _read(q: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
    """A draft token reads the real places up to where its draft begins, and of each further step its own draft's."""
    late, places = len(steps) - 1, torch.arange(q.shape[2])
    (keys, values), own = steps[0], steps[1:]
    scores = (q @ keys.transpose(2, 3)).masked_fill(places > places[:, None] - late, -torch.inf)
    # A draft that begins before the text does has nothing to read; nobody looks at what it says.
    scores[:, :, :late, 0] = 0
    shifted = [tuple(part.roll(late - 1 - i, 2) for part in step) for i, step in enumerate(own)]
    diagonal = [(q * k).sum(-1, keepdim=True) for k, _ in shifted]
    weights = (torch.cat([scores, *diagonal], -1) / 8).softmax(-1)
    read = weights[..., : keys.shape[2]] @ values
    for i, (_, v) in enumerate(shifted):
        read = read + weights[..., keys.shape[2] + i, None] * v
    return read


class Eagle3(nn.Module):
    def __init__(self, target: SmallModel) -> None:
        super().__init__()
        self.hidden = int(target.config["hidden_size"])
        self.fc = nn.Linear(len(STREAMS) * self.hidden, self.hidden, bias=False)
        self.midlayer = HeadLayer(self.hidden)
        self.norm = Norm(self.hidden)
        # Its embeddings are the head's too, as vLLM shares them; they are not among the head's parameters.
        self._target = (target,)

    def forward(self, tokens: Tensor, streams: list[Tensor], count: int) -> list[Tensor]:
        """Logits of `count` steps for texts [batch, places]: a step's at place p are of the token at p + 2.

        The draft that a step's place p belongs to begins as many places before p as there were steps before.
        """
        words = self._target[0].embed_tokens.weight
        embeds = words[tokens[:, 1:]]
        hidden = self.fc(torch.cat([streams[i] for i in STREAMS], -1))[:, :-1]
        steps: list[tuple[Tensor, Tensor]] = []
        said = []
        for _ in range(count):
            stream = self.midlayer(hidden, embeds, steps)
            said.append(linear(self.norm(stream), words))
            hidden = stream.roll(1, 1)
        return said

    @torch.inference_mode()
    def drafted(self, target: SmallModel, prompt: list[int], response: list[int]) -> list[list[int]]:
        """The draft behind each token of a response but the last, as long as the tokens before one in it are right.

        Then they are the text's, so that unrolling along the text is drafting.
        """
        tokens = torch.tensor([prompt + response])
        said = [one[0].argmax(-1).tolist() for one in self(tokens, target.streams(tokens), PLACES)]
        # Behind the token at `at`, step s is at place at - 1 + s, and says the token at at + 1 + s.
        ends = range(len(prompt), tokens.shape[1] - 1)
        return [[said[s][at - 1 + s] for s in range(min(PLACES, ends.stop - at))] for at in ends]

    @classmethod
    def read(cls, folder: Path, target: SmallModel) -> Eagle3:
        head = cls(target)
        head.load_state_dict(load_file(folder / "model.safetensors"))
        return head

    def write(self, out: Path) -> None:
        """The folder that a server's speculative configuration names."""
        target = self._target[0].config
        out.mkdir(parents=True, exist_ok=True)
        save_file({name: one.contiguous() for name, one in self.state_dict().items()}, out / "model.safetensors")
        sizes = {"num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
        more = {"intermediate_size": CHANNELS, "layer_types": ["full_attention"], "dtype": "float32"}
        own = {"architectures": ["Eagle3Qwen3ForCausalLM"], "draft_vocab_size": target["vocab_size"]}
        layers = {"eagle_aux_hidden_state_layer_ids": list(STREAMS), "tie_word_embeddings": False}
        config = {**target, **sizes, **more, **own, **layers}
        (out / "config.json").write_text(json.dumps(config, indent=1))
