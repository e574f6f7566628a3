"""Grouped speculative decoding inside vLLM's engine step, on the same core.wasm as the sidecar."""
