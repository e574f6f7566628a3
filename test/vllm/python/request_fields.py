"""Prints the fields of vLLM's request classes as JSON: a list of names for each class."""

import json

import msgspec
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest

fields = {
    request.__name__: sorted(request.model_fields)
    for request in (CompletionRequest, ChatCompletionRequest, GenerateRequest)
}
names = [field.name for field in msgspec.structs.fields(SamplingParams)]
fields["SamplingParams"] = [name for name in names if not name.startswith("_")]
print(json.dumps(fields))
