"""What a GGUF file holds, short enough to be kept beside the tests."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from medusa_cli.converters.gguf.header import read_header


def described(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF (long lists as digests), and shape, type and digest of its tensors."""

    def short(value: Any) -> Any:
        if isinstance(value, list) and len(value) > 16:
            return f"{len(value)} items, sha256 {sha256(json.dumps(value).encode()).hexdigest()[:16]}"
        return value

    header, _ = read_header(path)
    data = path.read_bytes()
    tensors = {}
    for tensor in header.tensors:
        start = header.data_offset + tensor.offset
        digest = sha256(data[start : start + tensor.nbytes]).hexdigest()[:16]
        tensors[tensor.name] = [list(tensor.shape), tensor.type, digest]
    return {"metadata": {key: short(value) for key, value in header.metadata().items()}, "tensors": tensors}
