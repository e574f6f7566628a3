"""What the plugin relies on in a vLLM whose wheel is on pip's index, as `python wheel_sources.py 0.33.0` says.

Reads the wheel's folder and a dozen sources by ranges: about 1 MB of 340. Ends with 1 where something is not known.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

from pip._internal.commands import create_command
from pip._internal.network.lazy_wheel import LazyZipOverHTTP
from pip._vendor.packaging.specifiers import SpecifierSet

from foretoken_vllm import keyed, runner_v2

RELIED_ON = runner_v2.RELIED_ON + keyed.RELIED_ON

# What is read or set without a call: by the last names of the module. The hashes know nothing of these.
NAMES = {
    "worker.gpu.input_batch": ("num_reqs", "num_tokens", "num_draft_tokens", "idx_mapping"),
    "worker.gpu.states": ("req_id_to_index", "total_len", "all_token_ids"),
    "worker.gpu.spec_decode.rejection_sampler": ("rejection_sample",),
    "worker.gpu.warmup": ("SamplingParams.for_sampler_warmup()",),
    "worker.gpu_worker": ("import warmup_kernels", "warmup_kernels("),
    "worker.gpu.model_runner": ("init_speculator", "draft_tokens[:, num_spec_tokens:] = -1"),
    "worker.gpu.cudagraph_utils": ("cg_mode", "_graphs_captured", "_capture_descs", "_candidates", "ubatch_runner"),
    "core.sched.scheduler": ("self.dynamic_sd_lookup", "self.num_spec_tokens > 0 and self.dynamic_sd_lookup is None"),
    "core.sched.output": ("req_id", "prefill_token_ids", "prompt_len", "sampling_params", "scheduled_new_reqs"),
    "outputs": ("req_ids", "sampled_token_ids"),
}


def extract(version: str, paths: set[str], folder: str) -> None:
    """Those of the paths that the wheel has."""
    command = create_command("download")
    options, _ = command.parse_args([])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        best = finder.find_best_candidate("vllm", SpecifierSet(f"=={version}")).best_candidate
        if best is None:
            raise SystemExit(f"pip's index has no wheel of vLLM {version} for this Python")
        with LazyZipOverHTTP(best.link.url_without_fragment, session) as remote, ZipFile(remote) as wheel:
            for path in paths.intersection(wheel.namelist()):
                wheel.extract(path, folder)


def main(version: str) -> int:
    modules = {f"vllm.v1.{module}": names for module, names in NAMES.items()}
    wanted = {*modules, *(module for module, _, _ in RELIED_ON)}
    paths = {module.replace(".", "/") + end for module in wanted for end in (".py", "/__init__.py")}
    with tempfile.TemporaryDirectory() as name:
        extract(version, paths, name)
        problems = runner_v2.unknown_in(Path(name), RELIED_ON)
        for module, names in modules.items():
            source = Path(name, module.replace(".", "/") + ".py")
            text = source.read_text() if source.exists() else ""
            problems += [f"{module} has no {word}" for word in names if word not in text]
    print("\n".join(problems) or f"vLLM {version}: all is known")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
