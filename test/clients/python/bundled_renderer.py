"""A renderer of the bundled model for the renderers package, which can extend a turn without rendering it again."""

from typing import Any, ClassVar

from renderers.base import RenderedTokens
from renderers.configs import DefaultRendererConfig
from renderers.default import DefaultRenderer


class BundledConfig(DefaultRendererConfig):
    """A custom renderer must have a configuration class of its own."""


class BundledRenderer(DefaultRenderer):
    """`<|user|>TEXT<|assistant|>TEXT<|end|>`, as the model's chat template has it."""

    config_class: ClassVar[type] = BundledConfig

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Any],
        *,
        tools: list[Any] | None = None,
    ) -> RenderedTokens | None:
        end = self._tokenizer.convert_tokens_to_ids("<|end|>")
        ids = [*previous_prompt_ids, *previous_completion_ids]
        if ids[-1] != end:
            ids.append(end)
        indices = [-1] * len(ids)
        for index, message in enumerate(new_messages):
            added = self._tokenizer.encode(f"<|user|>{message['content']}", add_special_tokens=False)
            ids += added
            indices += [index] * len(added)
        ids.append(self._tokenizer.convert_tokens_to_ids("<|assistant|>"))
        indices.append(-1)
        return RenderedTokens(
            token_ids=ids,
            message_indices=indices,
            message_roles=[message["role"] for message in new_messages],
            sampled_mask=[False] * len(ids),
            is_content=[index >= 0 for index in indices],
        )
