"""Runs the project's core.wasm under wasmtime: the suffix indexes of all groups, one batched call per step.

Owns one instance and its memory. Refuses a core with another ABI than the one this package was generated for.
Belongs to one thread. After a CoreTrapError the instance is of no use any more.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import wasmtime
from numpy.typing import NDArray

from . import abi

# Room for tokens that cross in one call; as the other host has it (src/core/wasm/suffix-index.ts).
INPUT_WORDS = 60_000
DRAFTS_MIN = 128
BUDGET_NONE = 0x7FFFFFFF
_ENV_PATH = "FORETOKEN_CORE"
_RAW_VALUES = 3
_ADDRESSES = 2**32


class CoreError(Exception):
    """The core is missing, of another ABI, or out of room for a step's records."""


class CoreTrapError(CoreError):
    """The core gave up; its instance is of no use any more."""


class StepDrafts(NamedTuple):
    """Draft i owns tokens[starts[i]:starts[i + 1]]; `failed` holds the append records that were refused."""

    starts: list[int]
    tokens: list[int]
    failed: list[int]


def core_path() -> Path:
    """FORETOKEN_CORE, the wheel's own copy, or the checkout's build that this package runs from."""
    override = os.environ.get(_ENV_PATH)
    if override:
        return Path(override)
    own = Path(__file__).with_name("core.wasm")
    if own.is_file():
        return own
    parents = Path(__file__).resolve().parents
    return parents[4] / "build" / "core.wasm" if len(parents) > 4 else own


def float_word(value: float) -> int:
    """The bits of a 32-bit float as the signed word that the input area holds."""
    return int.from_bytes(ctypes.c_float(value), "little", signed=True)


def _abort(_message: int, _file: int, line: int, column: int) -> None:
    raise CoreTrapError(f"core.wasm gave up at {line}:{column}")


class SuffixCore:
    """The core's exports with typed arguments. Handles are positive; statuses are below zero."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        limit_bytes: int = 512 * 2**20,
        context_tokens: int = abi.CONTEXT_TOKENS_DEFAULT,
        learning: bool = True,
        holds_lock: bool = True,
    ) -> None:
        """`holds_lock`: a step keeps Python's lock; else others run meanwhile, and it may wait to get it back."""
        path = path or core_path()
        try:
            code = path.read_bytes()
        except OSError as error:
            raise CoreError(f"{path} cannot be read; run `npm run build`: {error}") from error
        settings = wasmtime.Config()
        # The memory has its addresses from the start, all that its 32-bit offsets can reach: it never moves.
        settings.memory_reservation = _ADDRESSES
        settings.memory_may_move = False
        engine = wasmtime.Engine(settings)
        self._store = wasmtime.Store(engine)
        # An assertion that is compiled away leaves the core without its one import.
        linker = wasmtime.Linker(engine)
        linker.define_func("env", "abort", wasmtime.FuncType([wasmtime.ValType.i32()] * 4, []), _abort)
        try:
            module = wasmtime.Module(engine, code)
            self._exports = linker.instantiate(self._store, module).exports(self._store)
        except wasmtime.WasmtimeError as error:
            raise CoreError(f"{path} is not the core: {error}") from error
        self._has_trapped = False
        version = self._call("abi_version")
        if version != abi.ABI_VERSION:
            raise CoreError(f"{path} has ABI {version}, this package {abi.ABI_VERSION}")
        memory = self._exports["memory"]
        if not isinstance(memory, wasmtime.Memory):
            raise CoreError(f"{path} exports no memory")
        self._memory = memory
        self._call("configure", limit_bytes, context_tokens, 1 if learning else 0)
        self._step = _step_function(self._store, self._exports, "step", 3, holds_lock)
        self._table_step = _step_function(self._store, self._exports, "table_step", 2, holds_lock)
        # Of the memory: the input area, as words that cannot be below 0 and as any; the output area, and in it the
        # probabilities. Views of fixed places, because a step has no time to ask where they are.
        self._input: Any = memoryview(array("I"))
        self._input_signed: Any = memoryview(array("i"))
        self._output: Any = memoryview(array("i"))
        self._probabilities: Any = memoryview(array("f"))
        self._input_at = 0
        self._drafts_max = 0
        self._words_max = 0
        self._reserve(DRAFTS_MIN)

    @property
    def words_max(self) -> int:
        """Words that the append and draft records of one step may take together."""
        return self._words_max

    def create(self) -> int:
        """A group's handle, or abi.STATUS_FULL."""
        return self._call("group_create")

    def prompt(self, handle: int, tokens: array[int]) -> int:
        """A piece of the group's prompt, before any of its sequences; ids >= 0, at most INPUT_WORDS. A status."""
        self._write(tokens)
        return self._call("group_prompt", handle, self._input_at, len(tokens))

    def history(self, handle: int, tokens: array[int], offset: int = 0) -> int:
        """A piece of a response of an earlier epoch, after its first `offset` tokens and after the prompt. A status."""
        self._write(tokens)
        return self._call("group_history", handle, self._input_at, len(tokens), offset)

    def drop(self, handle: int) -> int:
        """Frees the group in O(1). A status."""
        return self._call("group_drop", handle)

    def used_bytes(self) -> int:
        """Bytes that all groups take."""
        return self._call("used_bytes") & 0xFFFFFFFF

    def step(
        self,
        append_words: list[int],
        appends: int,
        draft_words: array[int],
        drafts: int,
        budget: int = BUDGET_NONE,
    ) -> StepDrafts:
        """The one call of an engine step: `appends` records, then `drafts` records (layouts: assembly/abi.ts).

        The records must fit in `words_max`, and none of their words is below 0. Of all drafts together, at most
        `budget` tokens are kept. `draft_words` are 32-bit, and are not changed.
        """
        if drafts > self._drafts_max:
            self._reserve(2 * drafts)
        try:
            # Unsigned: an id below 0 is found without a look at each.
            words = array("I", append_words)
        except OverflowError as error:
            raise CoreError(f"a word of the step's records is out of range: {error}") from error
        middle = len(words)
        end = middle + len(draft_words)
        if end > self._words_max:
            raise CoreError(f"{end} words are more than the input area holds, {self._words_max}")
        self._input[:middle] = words
        self._input_signed[middle:end] = draft_words
        if self._has_trapped:
            raise CoreTrapError("core step: refused, the core has trapped")
        try:
            count = self._step(appends, drafts, budget)
        except CoreTrapError:
            self._has_trapped = True
            raise
        if count < 0:
            raise CoreError(f"core step: status {count}")
        output = self._output
        starts = output[: drafts + 2].tolist()
        failed = self._failed(appends) if starts.pop(0) > 0 else []
        tokens_at = self._drafts_max + 2
        # Not by its own constructor, which is Python.
        return tuple.__new__(StepDrafts, (starts, output[tokens_at : tokens_at + count].tolist(), failed))

    def reserve_tables(self, slots: int) -> memoryview[int]:
        """The area of the tables of `slots` slots (assembly/tables.ts), once and before any group; never moves."""
        at = self._call("tables_reserve", slots) & 0xFFFFFFFF
        if at == 0:
            raise CoreError(f"the core's memory leaves no room for the tables of {slots} slots")
        return self._view(at, abi.TABLE_AREA_WORDS + 2 * slots * abi.TABLE_ROW_WORDS + abi.FOLLOWERS_WORDS)

    def table_step(self, records: NDArray[np.int32], tokens: NDArray[Any]) -> list[int]:
        """Appends tokens of requests and writes their tables: records and layouts are assembly/tables.ts's.

        `records`: [requests, TABLE_STEP_WORDS]; `tokens`: [requests, width], ids >= 0. The rows of records that failed.
        """
        requests, width = tokens.shape
        words = records.size + tokens.size
        if words > self._words_max:
            raise CoreError(f"{words} words are more than the input area holds, {self._words_max}")
        if requests > self._drafts_max:
            self._reserve(2 * requests)
        area = np.frombuffer(self._input_signed, np.int32, words)
        area[: records.size] = records.ravel()
        area[records.size :] = tokens.ravel()
        if self._has_trapped:
            raise CoreTrapError("core table_step: refused, the core has trapped")
        try:
            failed = self._table_step(requests, width, 0)
        except CoreTrapError:
            self._has_trapped = True
            raise
        if failed < 0:
            raise CoreError(f"core table_step: status {failed}")
        counts = area[2 : records.size : abi.TABLE_STEP_WORDS]
        return np.flatnonzero(counts < 0).tolist() if failed > 0 else []

    def probabilities(self, count: int) -> list[float]:
        """Of the `count` tokens that the last step drafted: that the path up to each is accepted."""
        found: list[float] = self._probabilities[:count].tolist()
        return found

    def _call(self, name: str, *arguments: int) -> int:
        function = self._exports[name]
        if not isinstance(function, wasmtime.Func):
            raise CoreError(f"core.wasm exports no function {name}")
        if self._has_trapped:
            raise CoreTrapError(f"core {name}: refused, the core has trapped")
        try:
            result = function(self._store, *arguments)
        except (wasmtime.WasmtimeError, wasmtime.Trap, CoreTrapError) as error:
            self._has_trapped = True
            raise CoreTrapError(f"core {name}: {error}") from error
        return int(result) if result is not None else 0

    def _reserve(self, drafts: int) -> None:
        words = INPUT_WORDS + drafts * abi.DRAFT_WORDS
        self._input_at = self._call("input_reserve", words) & 0xFFFFFFFF
        output_at = self._call("output_reserve", drafts) & 0xFFFFFFFF
        if self._input_at == 0 or output_at == 0:
            raise CoreError("the core's memory leaves no room for a step's records")
        self._words_max = words
        self._drafts_max = drafts
        self._input = self._view(self._input_at, words).cast("I")
        self._input_signed = self._view(self._input_at, words).cast("i")
        room = drafts * abi.TREE_TOKENS_MAX
        output = self._view(output_at, 2 + drafts + 3 * room)
        self._output = output.cast("i")
        self._probabilities = output[4 * (2 + drafts + 2 * room) :].cast("f")

    def _view(self, at: int, words: int) -> memoryview[int]:
        base = ctypes.addressof(self._memory.data_ptr(self._store).contents)
        return memoryview((ctypes.c_int32 * words).from_address(base + at)).cast("B")

    def _write(self, tokens: array[int]) -> None:
        if len(tokens) > self._words_max:
            raise CoreError(f"{len(tokens)} words are more than the input area holds, {self._words_max}")
        self._input_signed[: len(tokens)] = tokens

    def _failed(self, appends: int) -> list[int]:
        """The core has put each append record's status where its group was."""
        area = self._input_signed
        failed: list[int] = []
        word = 0
        for record in range(appends):
            if area[word] != abi.STATUS_OK:
                failed.append(record)
            word += abi.APPEND_HEADER_WORDS + area[word + 2]
        return failed


def _step_function(
    store: wasmtime.Store, exports: Any, name: str, arity: int, holds_lock: bool
) -> Callable[[int, int, int], int]:
    """A function of three or fewer integers, without wasmtime's checks of each argument where this wasmtime allows it.

    The public call looks the function's type up and boxes every value: 25 us of a budget of 100. The raw call is
    no public API of the package, so it is tried against the public one first.
    """
    function = exports[name]

    def checked(*arguments: int) -> int:
        try:
            return int(function(store, *arguments[:arity]))
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            raise CoreTrapError(f"core {name}: {error}") from error

    try:
        raw = _raw_step(store, function, holds_lock)
        version = _raw_step(store, exports["abi_version"], holds_lock)(0, 0, 0)
    except (AttributeError, ImportError, TypeError, ctypes.ArgumentError, CoreError):
        return checked
    return raw if version == abi.ABI_VERSION else checked


def _raw_step(store: wasmtime.Store, function: Any, holds_lock: bool) -> Callable[[int, int, int], int]:
    """Calls it by wasmtime's C API. Its arguments are made once."""
    bindings: Any = importlib.import_module("wasmtime._bindings")
    values = (bindings.wasmtime_val_raw_t * _RAW_VALUES)()
    # Each value is a union of 16 bytes, of which an integer takes the first four.
    words = memoryview(values).cast("B").cast("i")
    second, third = (at * ctypes.sizeof(bindings.wasmtime_val_raw_t) // 4 for at in (1, 2))
    context = store._context()
    target = ctypes.byref(function._func)
    trap = ctypes.POINTER(bindings.wasm_trap_t)()
    trap_at = ctypes.byref(trap)
    count = ctypes.c_size_t(_RAW_VALUES)
    # The step thread holds the interpreter's lock: another thread that takes it in between keeps it for longer than the
    # call lasts.
    library = (ctypes.PyDLL if holds_lock else ctypes.CDLL)(None, handle=bindings.dll._handle)
    call = library["wasmtime_func_call_unchecked"]
    call.restype = ctypes.c_void_p

    def invoke(*arguments: int) -> int:
        words[0], words[second], words[third] = arguments
        error = call(context, target, values, count, trap_at)
        if error or trap:
            raise CoreTrapError("core.wasm gave up in a step")
        return words[0]

    return invoke
