"""A general plugin of vLLM: keeps asynchronous scheduling on, and takes vLLM's integer masks in Triton's interpreter."""

import os


def register():
    if os.environ.get("TRITON_INTERPRET") == "1":
        _take_integer_masks()
        _keep_asynchronous_scheduling()
    if "STEERING_FILE" in os.environ:
        import steered  # noqa: F401


def _take_integer_masks():
    """Where a mask is an integer, numpy would index by it."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder

    def wrapped(name, place):
        original = getattr(InterpreterBuilder, name)

        def masked(self, *arguments):
            mask = arguments[place]
            if mask.data.dtype != np.bool_:
                mask.data = mask.data.astype(np.bool_)
            return original(self, *arguments)

        return masked

    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        setattr(InterpreterBuilder, name, wrapped(name, place))


def _keep_asynchronous_scheduling():
    """vLLM's CPU platform switches it off ("not required"); what it was to be without that stays."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    def keeping(cls, config):
        wanted = config.scheduler_config.async_scheduling
        original(cls, config)
        config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = classmethod(keeping)
