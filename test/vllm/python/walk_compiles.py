"""The kernel as a GPU would run it: compiled to PTX, which needs no GPU. Triton's interpreter takes much that this does not."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import ir, make_backend

from foretoken_vllm.walk import _kernel

KINDS = {
    "buffers": "*i32",
    "selected": "*i32",
    "followers": "*i32",
    "odds": "*i32",
    "slots": "*i64",
    "total_len": "*i32",
    "last_sampled": "*i64",
    "all_tokens": "*i32",
    "drafts": "*i64",
    "confidences": "*fp32",
    "rather": "*i32",
    "seen": "*i32",
    "kept": "*i32",
}

names = _kernel.arg_names
for slots, has_head in (("*i32", False), ("*i64", False), ("*i64", True)):
    values = {"has_head": has_head}
    constants = {(names.index(name),): value for name, value in values.items()}
    signature = {name: "constexpr" if name in values else KINDS.get(name, "i32") for name in names} | {"slots": slots}
    source = ASTSource(fn=_kernel, signature=signature, constexprs=constants)
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({"num_warps": 1, "ptx_version": 86, "extern_libs": (), **source.parse_options()})
    stages: dict = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    made = source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
    metadata: dict = {"target": target, **options.__dict__}
    for stage in ("ttir", "ttgir", "llir", "ptx"):
        made = stages[stage](made, metadata)
    print(f"{slots}{', a head' if has_head else ''}: {len(made)} characters of PTX")
