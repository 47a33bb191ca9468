"""Checkpoints and files of weights: what `rendez push` pushes becomes a checkpoint, and `rendez pull` has one as a
file. A file has tensors by flat names, and nothing else."""

import collections
import contextlib
import re
import secrets
import threading
import time

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ... import _errors
from ..._errors import Aborted, DeadlineExceeded, RendezError, Unavailable, Unimplemented
from . import _metadata, _pieces, _words
from ._pieces import DATA, HEARD, TAKEN

#: torch's types by safetensors' names.
_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": getattr(torch, "float8_e8m0fnu", None),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items() if dtype is not None}


def pull(holder, task, patience):
    """Takes a push into a holder; gives the checkpoint's name."""
    engine = holder.engine
    line = _found(engine, task, patience)
    save = secrets.token_hex(8)
    try:
        name, metadata, sums = _taken(holder, line, save)
        holder.commit(save, _packed(holder, name, save, metadata))
    except BaseException as error:
        holder.give_up(save)
        _report(line, {"sums": [], "is_written": False, "failed": _why(error)})
        raise
    else:
        _report(line, {"sums": sums, "is_written": False, "failed": None})
        return name
    finally:
        line.close()


def _found(engine, task, patience):
    """Finds the task that pushes to this one, and has it begin."""
    until, token = time.monotonic() + patience, secrets.randbits(63)
    while time.monotonic() < until:
        try:
            said = _words.call(engine, task, _words.FIND_PUSH, {"to": engine.task}, patience)
            pusher = said.get("pusher")
            if pusher is not None:
                if not isinstance(pusher, list) or len(pusher) != 2:
                    raise _words.malformed(task, f"{pusher} is no task with its address")
                pusher, address = map(str, pusher)
                if address and pusher != task:
                    engine.add_peer(pusher, address)
                line = _pieces.Line(engine, pusher, patience)
                # Listened to before it begins.
                line.listen(DATA)
                try:
                    _words.call(engine, pusher, _words.TAKE_PUSH, {"to": engine.task, "token": token}, patience)
                    return line
                except BaseException:
                    line.close()
                    raise
        except Unimplemented:
            raise Unimplemented(
                f"{task} holds no checkpoints and pushes none: it is neither a process with a Holder or RendezWriter, "
                f"nor `rendez push … --to {engine.task}`",
                "CHECKPOINT_UNSUPPORTED",
            ) from None
        except (Unavailable, DeadlineExceeded, Aborted) as error:
            # One push may end as the next begins at the same address: then the task has come back.
            is_over = isinstance(error, Aborted) and error.reason != "PEER_RESTARTED"
            if is_over or time.monotonic() >= until:
                raise
        time.sleep(0.05)
    raise DeadlineExceeded(f"{task} answers, and nothing was pushed to {engine.task} there in time", "DEADLINE")


def _taken(holder, line, save):
    """Takes all files: the tensors go to the holder's memory, each copied at most once."""
    manifest = _pieces.told(_piece(line), line.peer)
    line.took()
    name = _name(manifest.get("name"))
    holder.begin(save, name)
    state, stored, sums = {}, {}, []
    place = holder.place
    for file in _pieces.files_of(manifest, line.peer):
        digest = _pieces.Digest()
        first = bytes(memoryview(_piece(line)))
        if file.get("is_weights"):
            entries = _pieces.entries_of(first, file.get("bytes"), line.peer)
            digest.header(first)
            line.took()
            for entry, kind, shape, nbytes in entries:
                value = _piece(line)
                digest.piece(value)
                item = _item(holder.engine, value, kind, shape, entry, line.peer)
                if item is None or nbytes != item.tensor.nbytes or entry in state:
                    raise _pieces.mismatch(entry, line.peer)
                number = holder.put(save, item)
                chunk = ChunkStorageMetadata(torch.Size([0] * len(item.shape)), item.shape)
                state[entry] = TensorStorageMetadata(TensorProperties(dtype=item.dtype), item.shape, [chunk])
                stored[MetadataIndex(entry, chunk.offsets)] = _metadata.Stored(place, number, nbytes)
                del value
                line.took()
        else:
            digest.text_of(first)
            line.took()
        theirs = bytes(memoryview(_piece(line))).decode("ascii", "replace")
        if theirs != digest.text():
            raise _pieces.mismatch(str(file.get("name")), line.peer)
        sums.append(theirs)
        line.took()
    if not sums:
        raise _words.malformed(line.peer, "no files")
    planner = {fqn: (fqn,) for fqn in state}
    return name, (Metadata(state, planner_data=planner), stored), sums


def _packed(holder, name, save, metadata):
    from ._holder import bytes_held

    return bytes_held(holder.engine, _metadata.pack(name, save, *metadata)).tensor


def _item(engine, value, kind, shape, name, peer):
    """A tensor that came, in memory of this process's own; types that torch has not are bytes."""
    from ._holder import Item, copied

    dtype = _TYPES.get(kind)
    shape = torch.Size(shape)
    if dtype is None:
        dtype, shape = torch.uint8, torch.Size(value.shape)
    try:
        if dtype not in _words.CARRIED:
            value = value.reshape([value.nbytes])
        item = Item(value, dtype, shape)
        seen = item.view(peer)
    except RendezError:
        return None
    return copied(engine, seen) if value.path == "lease" else item


def _piece(line):
    value = line.hear()
    if value.dead:
        raise _pieces.failed(_pieces.told(value, line.peer), line.peer)
    return value


def _why(error):
    known = isinstance(error, RendezError)
    return {
        "code": int(error.code) if known else int(_errors.Code.UNKNOWN),
        "reason": error.reason if known else "",
        "message": error.message if known else f"{type(error).__name__}: {error}",
    }


def _report(line, report):
    try:
        line.say(TAKEN, _words.written(report))
        line.last(HEARD, 5.0)
    except RendezError:
        # It is gone; what came is here.
        pass


def _name(said):
    """A checkpoint's name of what a source calls its files, which may be a path."""
    name = re.split(r"[/\\]", str(said).rstrip("/"))[-1]
    name = re.sub(r"(\.safetensors)?(\.index\.json)?$", "", name)
    return re.sub(r"[\x00-\x1f\x7f]", "_", name)[:200].strip(".") or "pushed"


class Giver:
    """Answers `rendez pull --from` a holder's task: the newest checkpoint goes as one file of weights."""

    def __init__(self, holder):
        self._holder = holder
        self._tokens = collections.deque(maxlen=256)

    def find(self, caller, payload):
        """Which task pushes to the one that is named: this one, once it holds a checkpoint."""
        _words.read(payload, caller)
        here = [self._holder.engine.task, ""] if self._holder.checkpoints else None
        return _words.written({"pusher": here})

    def take(self, caller, payload):
        """Begins to send to the caller. It may ask again: its answer may have been lost."""
        token = (caller, str(_words.read(payload, caller).get("token")))
        if token not in self._tokens:
            found = self._holder.newest(None)
            self._tokens.append(token)
            work = threading.Thread(target=self._give, args=(caller, found), name="rendez-give", daemon=True)
            work.start()
        return b""

    def _give(self, taker, found):
        engine = self._holder.engine
        line = _pieces.Line(engine, taker, 60.0)
        line.listen(TAKEN)
        try:
            given(self._holder, line, found)
        except Exception as error:
            _words.log.warning("%s did not get the checkpoint '%s': %s", taker, found[1], error)
        finally:
            line.close()


def given(holder, line, found):
    """Sends a checkpoint as one file of weights, and waits until it was taken. Gives its SHA-256."""
    flow = _Flow(line)
    try:
        name, size, text = _sent(holder, flow, found)
    except Exception as error:
        if not flow.is_over:
            with contextlib.suppress(RendezError):
                line.dead(_words.written(_why(error)))
                # Its report would be taken for that of the next exchange.
                flow.report(5.0)
        raise
    report = flow.report(line.patience + _pieces.slow(size))
    if report.get("sums") != [text]:
        raise _pieces.mismatch(name, line.peer)
    return text


def _sent(holder, flow, found):
    """Sends all of the file. Gives its name, the bytes of its tensors, and its SHA-256."""
    save, name, packed = found
    metadata, _, _ = _metadata.unpack(bytes(memoryview(packed)), holder.engine.task)
    tensors = sorted(
        (fqn, about) for fqn, about in metadata.state_dict_metadata.items() if isinstance(about, TensorStorageMetadata)
    )
    entries = []
    for fqn, about in tensors:
        dtype = about.properties.dtype
        if dtype not in _NAMES:
            raise _words.unsupported(f"`{fqn}` is of {dtype}, which files of weights have no name for")
        entries.append((fqn, _NAMES[dtype], about.size, about.size.numel() * dtype.itemsize))
    header, size = _pieces.header_of(entries, {"format": "pt"})
    digest = _pieces.Digest()
    digest.header(header)
    file = {"name": f"{name}.safetensors", "bytes": 8 + len(header) + size, "is_weights": True}
    flow.give(_words.written({"name": file["name"], "is_folder": False, "files": [file]}))
    flow.give(header)
    for fqn, about in tensors:
        value = _whole(holder, save, fqn, about, metadata.storage_data)
        digest.piece(value)
        flow.give(value)
    flow.give(digest.text().encode())
    return file["name"], size, digest.text()


class _Flow:
    """Pieces under way: as many as may be, and no more."""

    def __init__(self, line):
        self._line = line
        self._sizes = []
        #: The other end has reported, or is gone.
        self.is_over = False

    def give(self, piece):
        size = piece.nbytes if hasattr(piece, "nbytes") else len(piece)
        while self._sizes and (sum(self._sizes) + size > _words.WINDOW or len(self._sizes) >= _words.PIECES):
            self._hear(self._line.patience)
        self._line.say(DATA, piece)
        self._sizes.append(size)

    def report(self, patience):
        while True:
            said = self._hear(patience)
            if said is not None:
                return said

    def _hear(self, patience):
        """What the other end says next: None for a piece that was taken, or its report."""
        try:
            value = self._line.hear(patience)
        except RendezError:
            self.is_over = True
            raise
        if value.dtype == "u64":
            if self._sizes:
                self._sizes.pop(0)
            return None
        self.is_over = True
        said = _pieces.told(value, self._line.peer)
        self._line.say(HEARD, b"1")
        if said.get("failed"):
            raise _pieces.failed(said["failed"], self._line.peer)
        return said


def _whole(holder, save, fqn, about, stored):
    """A tensor as one value: as it lies, if it is whole; else put together of its shards, which are copied once."""
    from ._reader import Source

    dtype = about.properties.dtype
    chunks = [(chunk, stored[MetadataIndex(fqn, chunk.offsets)]) for chunk in about.chunks]
    sources = {one.place: Source(holder.engine, one.place) for _, one in chunks}

    def come(one):
        (value,) = sources[one.place].items(save, [(one.number, None, None, one.nbytes)])
        return value

    if len(chunks) == 1 and chunks[0][0].sizes == about.size:
        value = come(chunks[0][1])
        return value if dtype in _words.CARRIED else value.reshape(list(about.size))
    held, into = _words.room(holder.engine, about.size, dtype)
    for chunk, one in chunks:
        part = tuple(slice(at, at + n) for at, n in zip(chunk.offsets, chunk.sizes, strict=True))
        into[part].copy_(_words.view(come(one), chunk.sizes, dtype, one.place.task))
    del into
    return held.freeze() if dtype in _words.CARRIED else held.freeze().reshape(list(about.size))
