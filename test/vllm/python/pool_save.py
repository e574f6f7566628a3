"""Engines of a KV pool without vLLM: a real Mooncake store behind the plugin's guard, or a bare segment.

    python pool_save.py MASTER own BYTES     holds a segment with a beacon, until it is ended
    python pool_save.py MASTER save BYTES    saves block after block, and prints code and seconds of each as JSON
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

from foretoken_vllm.pool_guard import Circuit, GuardedStore
from foretoken_vllm.pool_peers import Peers

BLOCK_BYTES = 1 << 20
SAVE_S = 20.0


def main(master: str, role: str, segment_bytes: int) -> None:
    store = MooncakeDistributedStore()
    if store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, 16 << 20, "tcp", "", master) != 0:
        raise SystemExit("the store does not start")
    own = ReplicateConfig()
    own.preferred_segment = store.get_hostname()
    beacon = ReplicateConfig()
    beacon.preferred_segment = store.get_hostname()
    beacon.with_hard_pin = True
    peers = Peers(store)
    peers.start(lambda key, value: store.put(key, value, beacon))
    print(json.dumps({"ready": store.get_hostname()}), flush=True)
    if role == "own":
        time.sleep(600)
        return
    block = ctypes.create_string_buffer(BLOCK_BYTES)
    store.register_buffer(ctypes.addressof(block), BLOCK_BYTES)
    guard = GuardedStore(store, Circuit(), peers=peers)
    # As the engine: it has looked once before it saves.
    time.sleep(1.5)
    begin = time.monotonic()
    count = 0
    code = -1
    while code != 0 and time.monotonic() - begin < SAVE_S:
        at = time.monotonic()
        (code,) = guard.batch_put_from_multi_buffers(
            [f"block-{count}"], [[ctypes.addressof(block)]], [[BLOCK_BYTES]], own
        )
        print(json.dumps({"code": code, "s": time.monotonic() - at, "at": at - begin}), flush=True)
        count += 1
        time.sleep(0.05)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
