"""Generated from proto/draft.proto by generate.py; never edited by hand."""

PACKAGE = "foretoken.draft.v1"

MESSAGES: dict[str, tuple[tuple[str, int, str, bool, bool], ...]] = {
    "ClientFrame": (
        ("hello", 1, "Hello", False, True),
        ("register_group", 2, "RegisterGroup", False, True),
        ("update", 3, "Update", False, True),
        ("fetch", 4, "Fetch", False, True),
        ("telemetry", 5, "Telemetry", False, True),
        ("fetch_past", 6, "FetchPast", False, True),
    ),
    "ServerFrame": (
        ("welcome", 1, "Welcome", False, True),
        ("registered", 2, "Registered", False, True),
        ("updated", 3, "Updated", False, True),
        ("fetched", 4, "Fetched", False, True),
        ("budget", 5, "Budget", False, True),
        ("past", 6, "Past", False, True),
    ),
    "Hello": (
        ("protocol_version", 1, "uint32", False, False),
        ("engine", 2, "string", False, False),
        ("release", 3, "string", False, False),
    ),
    "Welcome": (
        ("protocol_version", 1, "uint32", False, False),
        ("instance_id", 2, "uint32", False, False),
        ("epoch", 3, "uint32", False, False),
        ("frame_bytes_max", 4, "uint32", False, False),
        ("telemetry_ms", 5, "uint32", False, False),
        ("has_past", 6, "bool", False, False),
    ),
    "RegisterGroup": (
        ("epoch", 1, "uint32", False, False),
        ("group_id", 2, "string", False, False),
        ("ttl_ms", 3, "uint32", False, False),
        ("prompt", 4, "bytes", False, False),
    ),
    "Registered": (
        ("epoch", 1, "uint32", False, False),
        ("status", 2, "Status", False, False),
        ("group_id", 3, "string", False, False),
        ("version", 4, "uint32", False, False),
        ("have", 5, "uint32", True, False),
    ),
    "SampleDelta": (
        ("sample_index", 1, "uint32", False, False),
        ("offset", 2, "uint32", False, False),
        ("tokens", 3, "bytes", False, False),
    ),
    "GroupDelta": (
        ("group_id", 1, "string", False, False),
        ("deltas", 2, "SampleDelta", True, False),
    ),
    "Update": (
        ("epoch", 1, "uint32", False, False),
        ("groups", 2, "GroupDelta", True, False),
    ),
    "UpdateRefusal": (
        ("group_id", 1, "string", False, False),
        ("sample_index", 2, "uint32", False, False),
        ("reason", 3, "Reason", False, False),
        ("have", 4, "uint32", False, False),
    ),
    "Updated": (
        ("epoch", 1, "uint32", False, False),
        ("status", 2, "Status", False, False),
        ("refusals", 3, "UpdateRefusal", True, False),
    ),
    "CacheState": (
        ("group_id", 1, "string", False, False),
        ("have", 2, "uint32", True, False),
    ),
    "Fetch": (
        ("epoch", 1, "uint32", False, False),
        ("states", 2, "CacheState", True, False),
    ),
    "SampleBehind": (
        ("sample_index", 1, "uint32", False, False),
        ("have", 2, "uint32", False, False),
    ),
    "FetchedGroup": (
        ("group_id", 1, "string", False, False),
        ("version", 2, "uint32", False, False),
        ("deltas", 3, "SampleDelta", True, False),
        ("behind", 4, "SampleBehind", True, False),
    ),
    "Fetched": (
        ("epoch", 1, "uint32", False, False),
        ("status", 2, "Status", False, False),
        ("groups", 3, "FetchedGroup", True, False),
        ("unknown", 4, "string", True, False),
        ("more", 5, "bool", False, False),
    ),
    "Telemetry": (
        ("epoch", 1, "uint32", False, False),
        ("running", 2, "uint32", False, False),
        ("waiting", 3, "int32", False, False),
        ("kv_usage", 4, "float", False, False),
        ("is_lossless", 5, "bool", False, False),
        ("steps", 6, "double", False, False),
        ("step_us", 7, "double", False, False),
        ("propose_us", 8, "double", False, False),
        ("drafted", 9, "double", False, False),
        ("accepted", 10, "double", False, False),
        ("traced", 11, "double", False, False),
        ("traced_elsewhere", 12, "double", False, False),
        ("faults", 13, "double", False, False),
        ("step_error", 14, "double", False, False),
        ("repeats_seeds", 15, "bool", False, False),
    ),
    "Budget": (
        ("epoch", 1, "uint32", False, False),
        ("step_tokens", 2, "uint32", False, False),
        ("ttl_ms", 3, "uint32", False, False),
    ),
    "FetchPast": (
        ("epoch", 1, "uint32", False, False),
        ("group_id", 2, "string", False, False),
        ("have", 3, "uint32", False, False),
    ),
    "Past": (
        ("epoch", 1, "uint32", False, False),
        ("status", 2, "Status", False, False),
        ("group_id", 3, "string", False, False),
        ("have", 4, "uint32", False, False),
        ("responses", 5, "bytes", True, False),
        ("more", 6, "bool", False, False),
    ),
}

ENUMS: dict[str, tuple[tuple[str, int], ...]] = {
    "Status": (
        ("STATUS_UNSPECIFIED", 0),
        ("STATUS_OK", 1),
        ("STATUS_STALE_EPOCH", 2),
        ("STATUS_CONFLICT", 3),
        ("STATUS_FULL", 4),
    ),
    "Reason": (
        ("REASON_UNSPECIFIED", 0),
        ("REASON_HELD", 1),
        ("REASON_GAP", 2),
        ("REASON_FULL", 3),
        ("REASON_UNKNOWN", 4),
    ),
}
