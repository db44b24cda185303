"""Streams read back from their file into the form that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
from gguf import GGUFReader
from medusa_cli.converters.gguf.header import read_header
from medusa_cli.converters.heads import schema
from medusa_cli.converters.heads.stream_heads import Adapter, StreamHeads
from numpy.typing import NDArray

from medusa_cli.support.errors import MedusaError


def read_stream_heads(path: Path) -> StreamHeads:
    """What write_heads() wrote, sidecar or single file. MedusaError for other kinds and for what is missing."""
    header, _ = read_header(path)
    metadata = header.metadata()
    if metadata.get(schema.KIND_KEY) != schema.STREAMS:
        raise MedusaError(f"{path}: holds no streams, but {metadata.get(schema.KIND_KEY, 'no draft heads')}")
    stored = {tensor.name: np.asarray(tensor.data) for tensor in GGUFReader(path).tensors}
    root_a, root_b = schema.STREAM_ROOT
    try:
        ranks = int(metadata.get(schema.ACCURACY_RANKS_KEY, 0))
        flat = metadata.get(schema.ACCURACY_KEY, [])
        rank, layers = int(metadata[schema.STREAMS_RANK_KEY]), int(metadata[schema.STREAMS_LAYERS_KEY])
        heads = StreamHeads(
            embedding=stored[schema.STREAM_EMBEDDING],
            first_layer=int(metadata[schema.STREAMS_FIRST_LAYER_KEY]),
            layers=layers,
            d2t=stored[schema.D2T],
            base_name=str(metadata[schema.BASE_NAME_KEY]),
            base_fingerprint=str(metadata[schema.BASE_FINGERPRINT_KEY]),
            root_scale=stored.get(schema.STREAM_ROOT_SCALE),
            root=(stored[root_a], stored[root_b]) if metadata[schema.STREAMS_ROOT_RANK_KEY] else None,
            adapters=[_adapters(stored, number) for number in range(layers if rank else 0)],
            alpha=float(metadata[schema.STREAMS_ALPHA_KEY]),
            mode=cast(schema.StreamsMode, metadata[schema.STREAMS_MODE_KEY]),
            accuracy=[flat[at : at + ranks] for at in range(0, len(flat), max(1, ranks))],
            tree=schema.unflatten_tree(metadata.get(schema.TREE_KEY, [])),
        )
    except KeyError as error:
        raise MedusaError(f"{path}: {error.args[0]} is missing, train the streams again") from None
    heads.check()
    return heads


def _adapters(stored: Mapping[str, NDArray[np.floating]], number: int) -> dict[str, Adapter]:
    def parts(name: str) -> Adapter:
        a, b = (stored[schema.adapter(number, name, part)] for part in schema.ADAPTER_PARTS)
        return a, b

    return {name: parts(name) for name in schema.STREAM_MATRICES}
