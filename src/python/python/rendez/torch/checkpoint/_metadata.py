"""torch's metadata of a checkpoint as JSON, and back: what a reader gets from another task runs nothing here."""

import dataclasses

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ._words import Place, dtype_named, malformed, read, unsupported, written

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Stored:
    """Where one item of a checkpoint lies: its holder, its number there, and its bytes."""

    place: Place
    number: int
    nbytes: int


def pack(name, save, metadata, stored):
    """A checkpoint's metadata as bytes; `stored` says for each index where its item lies."""
    places = sorted({one.place for one in stored.values()}, key=lambda place: place.task)
    at = {place: index for index, place in enumerate(places)}
    state = {}
    for fqn, about in metadata.state_dict_metadata.items():
        if isinstance(about, BytesStorageMetadata):
            state[fqn] = None
            continue
        state[fqn] = {
            "dtype": str(about.properties.dtype).removeprefix("torch."),
            "size": list(about.size),
            "grad": about.properties.requires_grad,
            "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in about.chunks],
        }
    items = [
        [index.fqn, None if index.offset is None else list(index.offset), at[one.place], one.number, one.nbytes]
        for index, one in stored.items()
    ]
    return written(
        {
            "version": VERSION,
            "name": name,
            "save": save,
            "places": [dataclasses.astuple(place) for place in places],
            "state": state,
            "items": items,
            "planner": _planner(metadata.planner_data),
        }
    )


def _planner(data):
    """The default planner's: which path in nested containers each flat name stands for."""
    if data is None:
        return None
    if not isinstance(data, dict) or not all(
        isinstance(path, tuple) and all(isinstance(part, (str, int)) for part in path) for path in data.values()
    ):
        raise unsupported("this SavePlanner's planner_data is none of DefaultSavePlanner's, and cannot be handed over")
    return {fqn: list(path) for fqn, path in data.items()}


def unpack(payload, peer):
    """The metadata that `pack` wrote, `storage_data` being where items lie; and its name and the save's number."""
    said = read(payload, peer)
    try:
        return _unpacked(said, peer)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise malformed(peer, f"{type(error).__name__}: {error}") from None


def _unpacked(said, peer):
    if said["version"] != VERSION:
        raise malformed(peer, f"its version is {said['version']}, and this release reads {VERSION}")
    places = [Place(*map(_text, place)) for place in said["places"]]
    state = {}
    for fqn, about in said["state"].items():
        if about is None:
            state[fqn] = BytesStorageMetadata()
            continue
        chunks = [ChunkStorageMetadata(_size(at), _size(size)) for at, size in about["chunks"]]
        dtype = dtype_named(about["dtype"], peer)
        properties = TensorProperties(dtype=dtype, requires_grad=bool(about["grad"]))
        state[fqn] = TensorStorageMetadata(properties, _size(about["size"]), chunks)
    stored = {}
    for fqn, offset, place, number, nbytes in said["items"]:
        index = MetadataIndex(_text(fqn), None if offset is None else _size(offset))
        stored[index] = Stored(places[place], int(number), int(nbytes))
    for fqn, about in state.items():
        wanted = [None] if isinstance(about, BytesStorageMetadata) else [chunk.offsets for chunk in about.chunks]
        if any(MetadataIndex(fqn, offset) not in stored for offset in wanted):
            raise malformed(peer, f"a part of `{fqn}` lies nowhere")
    planner = said["planner"]
    if planner is not None:
        planner = {_text(fqn): tuple(path) for fqn, path in planner.items()}
    name, save = _text(said["name"]), _text(said["save"])
    meta = StorageMeta(checkpoint_id=name, save_id=save)
    return Metadata(state, planner_data=planner, storage_data=stored, storage_meta=meta, version="1.0.0"), name, save


def _text(value):
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _size(value):
    if not isinstance(value, list) or not all(isinstance(one, int) and 0 <= one < 2**62 for one in value):
        raise TypeError(f"{value!r} is no shape")
    return torch.Size(value)
