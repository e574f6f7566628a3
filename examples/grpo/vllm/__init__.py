"""Stands where vLLM's package would: TRL's server mode imports these names and, on this path, uses none.

A machine that has vLLM installed does not need this folder.
"""

import sys
from types import ModuleType

__version__ = "0.31.0"
__path__: list[str] = []

_NAMES = {
    "": ["LLM", "RequestOutput", "SamplingParams"],
    ".sampling_params": ["StructuredOutputsParams"],
    ".utils": [],
    ".utils.network_utils": ["get_ip", "get_open_port"],
    ".distributed": [],
    ".distributed.weight_transfer": [],
    ".distributed.weight_transfer.nccl_common": ["trainer_init"],
    ".distributed.weight_transfer.packed_tensor": ["packed_nccl_broadcast_producer"],
}

for _suffix, _names in _NAMES.items():
    _name = __name__ + _suffix
    _module = sys.modules.setdefault(_name, ModuleType(_name))
    for _member in _names:
        setattr(_module, _member, type(_member, (), {}))
