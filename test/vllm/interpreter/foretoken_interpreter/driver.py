"""What Triton and vLLM ask of a device: there is one, the CPU."""

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class CPUDriver(DriverBase):
    def __init__(self):
        pass

    @classmethod
    def is_active(cls):
        return True

    def map_python_to_cpp_type(self, kind):
        return kind

    def get_current_target(self):
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_benchmarker(self):
        raise NotImplementedError("the interpreter's times say nothing")

    def get_current_device(self):
        return 0

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device=None):
        return 0

    def get_device_interface(self):
        return torch.cpu

    def get_empty_cache_for_benchmark(self):
        raise NotImplementedError("the interpreter's times say nothing")

    def clear_cache(self, cache):
        pass
