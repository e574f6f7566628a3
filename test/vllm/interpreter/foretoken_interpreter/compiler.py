"""Never compiles: the interpreter runs a kernel's Python."""

from triton.backends.compiler import BaseBackend


class CPUBackend(BaseBackend):
    @staticmethod
    def supports_target(target):
        return target.backend == "cpu"

    def hash(self):
        return "foretoken-interpreter"

    def parse_options(self, options):
        return options

    def add_stages(self, stages, options, language=None):
        raise RuntimeError("TRITON_INTERPRET=1 is not set: this backend compiles nothing")

    def load_dialects(self, context):
        pass

    def get_module_map(self):
        return {}
