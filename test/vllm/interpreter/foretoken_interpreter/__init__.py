"""A Triton backend named `cpu` for its interpreter alone, so that vLLM's second model runner works without a GPU.

Triton finds it by its entry point; TRITON_INTERPRET=1 must be set, for it compiles nothing. Only for tests.
"""
