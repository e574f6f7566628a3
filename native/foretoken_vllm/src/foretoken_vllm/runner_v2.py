"""What the plugin relies on in vLLM's second model runner: signatures, known by a hash of each.

A vLLM in which one of them differs keeps its own drafts: nothing here is then put in place. The same check reads a
vLLM's sources (`python -m foretoken_vllm.runner_v2 FOLDER`), which need not be importable; `--choose` says which runner
the plugin drafts under here.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .faults import Faults
from .settings import SPECULATOR, is_cpu, is_older, load, vllm_version

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
# Its removal is announced and overdue; what it looks like in releases to come is not known.
FIRST_RUNNER_UNKNOWN = (0, 34)
# vLLM's methods that draft by a model of their own.
_HEADS = ("mtp", "eagle", "eagle3", "draft_model", "dflash", "dspark")
_GPU = "vllm.v1.worker.gpu"
# Module, qualified name, and the hashes of the signatures that are known: 0.32 and, where it differs, 0.33.
Signatures = tuple[tuple[str, str, tuple[str, ...]], ...]
RELIED_ON: Signatures = (
    (f"{_GPU}.spec_decode", "init_speculator", ("7ccc19381e2f",)),
    (f"{_GPU}.spec_decode.speculator", "BaseSpeculator.propose", ("7301b7a4efdc",)),
    (f"{_GPU}.spec_decode.speculator", "BaseSpeculator.capture", ("06c604b332b3",)),
    (f"{_GPU}.spec_decode.speculator", "BaseSpeculator.init_cudagraph_manager", ("7b46f83562d7",)),
    (f"{_GPU}.async_utils", "AsyncOutput.get_output", ("06c604b332b3",)),
    (f"{_GPU}.model_runner", "GPUModelRunner.add_requests", ("018b8a6a3ea0",)),
    (f"{_GPU}.model_runner", "GPUModelRunner._remove_request", ("502a15f37e40",)),
    (f"{_GPU}.model_runner", "GPUModelRunner.reload_weights", ("553da7253690",)),
    (f"{_GPU}.cudagraph_utils", "CudaGraphManager.dispatch", ("2bcf5db4b807",)),
    (f"{_GPU}.cudagraph_utils", "CudaGraphManager._init_candidates", ("06c604b332b3",)),
    (f"{_GPU}.cudagraph_utils", "CudaGraphManager._build_lora_dispatch_map", ("06c604b332b3",)),
    (f"{_GPU}.lora_utils", "get_lora_capture_cases", ("a50df239934a",)),
    (f"{_GPU}.states", "RequestState.__init__", ("f4b2b9fcebc4",)),
    (f"{_GPU}.states", "RequestState.add_request", ("dadd0459afad",)),
    (f"{_GPU}.async_utils", "AsyncOutput.__init__", ("0811b92de592",)),
    ("vllm.utils.torch_utils", "get_accelerator_view_from_cpu_tensor", ("e80d8ee9911a",)),
    (f"{_GPU}.spec_decode.rejection_sampler_utils", "rejection_sample", ("a5fc51fc0a1e", "fdc3c6e5ff49")),
    (f"{_GPU}.warmup", "warmup_kernels", ("bbb2f2eb56d8",)),
    (f"{_GPU}.sample.gumbel", "gumbel_sample", ("63660c1cc971",)),
)


def hash_of(parameters: list[str]) -> str:
    return hashlib.sha256(",".join(parameters).encode()).hexdigest()[:12]


def unknown_here(relied_on: Signatures = RELIED_ON) -> list[str]:
    """What the installed vLLM has otherwise, or not at all. Raises ImportError: there is none."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise ImportError("there is no vLLM here")
    return unknown_in(Path(spec.origin).parents[1], relied_on)


def unknown_in(folder: Path, relied_on: Signatures = RELIED_ON) -> list[str]:
    """The same of a vLLM whose package is `folder`/vllm, without importing it."""
    found = [_problem(name, _read(folder, module, name), known) for module, name, known in relied_on]
    return [problem for problem in found if problem is not None]


def _problem(name: str, parameters: list[str] | None, known: tuple[str, ...]) -> str | None:
    if parameters is None:
        return f"{name} is missing"
    found = hash_of(parameters)
    return None if found in known else f"{name}({', '.join(parameters)}) has hash {found}"


def _read(folder: Path, module: str, name: str) -> list[str] | None:
    base = folder.joinpath(*module.split("."))
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    try:
        body: list[ast.stmt] = ast.parse(path.read_text()).body
    except (OSError, SyntaxError):
        return None
    found: ast.stmt | None = None
    for part in name.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef)
        found = next((one for one in body if isinstance(one, kinds) and one.name == part), None)
        if found is None:
            return None
        body = found.body
    if not isinstance(found, ast.FunctionDef):
        return None
    given = found.args
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    names += [given.vararg.arg] if given.vararg else []
    names += [one.arg for one in given.kwonlyargs]
    return names + ([given.kwarg.arg] if given.kwarg else [])


def choose(environment: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """The runner that the plugin drafts under in a vLLM of this environment (0: under none), and why."""
    found = f"vLLM {vllm_version()}"
    try:
        problem = _second_runner_problem(environment)
    except ImportError as error:
        problem = str(error)
    if problem == "":
        return 2, f"{found} has Triton here"
    first = first_runner_problem()
    return (1, f"{found}: {problem}") if first == "" else (0, f"{found}: {problem}; {first}")


def _second_runner_problem(environment: Mapping[str, str]) -> str:
    asked = environment.get(_VARIABLE, "")
    if asked.lower() in ("0", "false"):
        return f"{_VARIABLE}={asked}"
    if unknown := unknown_here():
        return f"its second runner is not known: {'; '.join(unknown)}"
    from vllm.triton_utils import HAS_TRITON

    return "" if HAS_TRITON else "it has no Triton here"


def first_runner_problem() -> str:
    """Why the plugin drafts nothing under the first runner; "": it drafts there."""
    try:
        if not is_cpu():
            return "on GPUs the plugin drafts under the second runner alone: the first one is deprecated"
    except ImportError:
        return ""
    if not is_older(*FIRST_RUNNER_UNKNOWN):
        return f"the first runner is not known from vLLM {'.'.join(map(str, FIRST_RUNNER_UNKNOWN))} on"
    return ""


def beside_problem(config: Any) -> str | None:
    """Why nothing stands beside the head that vLLM has; "": nothing prevents it; None: it was not asked for."""
    if load(getattr(config, "additional_config", None), Faults()).beside == 0:
        return None
    speculation = config.speculative_config
    if speculation.method not in _HEADS:
        return f"method {speculation.method} has no head"
    if speculation.draft_sample_method != "greedy" or getattr(config, "watermark_config", None) is not None:
        return "its drafts are drawn from a distribution of its own, and none of ours would have that"
    if config.parallel_config.tensor_parallel_size > 1:
        return "the ranks of --tensor-parallel-size would draft differently"
    return ""


def has_tables(config: Any) -> bool:
    """Whether the server drafts from tables under the second runner."""
    speculation = config.speculative_config
    return speculation is not None and (speculation.model == SPECULATOR or beside_problem(config) == "")


def main(arguments: list[str]) -> int:
    if arguments == ["--choose"]:
        runner, reason = choose()
        print(f"runner {runner}: {reason}")
        return 0
    problems = [f"{folder}: {problem}" for folder in arguments for problem in unknown_in(Path(folder))]
    print("\n".join(problems) or f"{', '.join(arguments)}: all {len(RELIED_ON)} signatures are known")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
