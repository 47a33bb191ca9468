"""The reader: `torch.distributed.checkpoint` loads what a holder keeps, in any number of processes."""

import contextlib
import dataclasses
import io
import time

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ..._errors import NotFound, PermissionDenied, Unavailable, Unimplemented
from . import _metadata, _words
from ._holder import PATIENCE, Holder, own_engine
from ._words import ABOUT, FETCH

#: Seconds between two questions for what is not there yet.
_AGAIN = 0.05


class Source:
    """Checkpoints at a holder's, and its items: what a reader and a push have in common."""

    def __init__(self, engine, place, patience=PATIENCE):
        self.engine = engine
        self.task = place.told(engine)
        self.is_own = self.task == engine.task
        self.patience = patience

    def metadata(self, name, until):
        """The metadata of a checkpoint, waited for until that time."""
        while True:
            try:
                if self.is_own:
                    return _metadata.unpack(bytes(memoryview(Holder.of(self.engine).newest(name)[2])), self.task)
                left = max(min(self.patience, until - time.monotonic()), _AGAIN)
                said = _words.call(self.engine, self.task, ABOUT, {"name": name}, left)
                break
            except (NotFound, Unavailable):
                if time.monotonic() + _AGAIN >= until:
                    raise
                time.sleep(_AGAIN)
        (value,) = self._fetched(said.get("save"), "metadata", 1)
        return _metadata.unpack(bytes(memoryview(value)), self.task)

    def is_near(self):
        """Whether its large values are read where they lie, so that a part costs no less than the whole."""
        return self.is_own or self.engine.connect(self.task, timeout=self.patience) in ("local", "shm")

    def items(self, save, wanted):
        """Gives items in order, each once it has come. `wanted` has for each its number, the offsets and lengths of a
        part or None for the whole, and bytes."""
        if self.is_own:
            holder = Holder.of(self.engine)
            yield from (holder.part(save, one[:3], self.task) for one in wanted)
            return
        for batch in _batches(wanted):
            yield from self._fetched(save, [one[:3] for one in batch], len(batch))

    def _fetched(self, save, items, count):
        step, key = self.engine.step(_words.new_step()), _words.key(self.task, self.engine.task)
        try:
            receives = [step.recv(key).start() for _ in range(count)]
            asked = {"save": save, "step": step.id, "items": items}
            _words.call(self.engine, self.task, FETCH, asked, self.patience)
            for receive in receives:
                yield receive.wait(self.patience)
        finally:
            # For the holder too: what was not taken goes.
            step.abort("it was taken, or given up")


def _batches(wanted):
    batch, size, text = [], 0, 0
    for one in wanted:
        more = len(_words.written(one[:3]))
        if batch and (size + one[3] > _words.WINDOW or text + more > _words.REQUEST or len(batch) == _words.PIECES):
            yield batch
            batch, size, text = [], 0, 0
        batch.append(one)
        size, text = size + one[3], text + more
    if batch:
        yield batch


class RendezReader(StorageReader):
    """Loads a checkpoint that a holder keeps: `dcp.load(state, storage_reader=RendezReader(writer.place))`.

    `source` is a place, its text, or a task's name, with `address` if the engine does not know it. `checkpoint_id` is
    the checkpoint's name; without it the newest is loaded. For `patience` seconds it may still be to come. Where
    nothing but a `rendez push` to this engine's task is at the source, that is taken, as a flat state dict.

    Objects that only pickle can read are refused unless `allow_pickle` says otherwise, or the engine was given the
    cluster's secret.
    """

    def __init__(
        self, source, *, address=None, engine=None, checkpoint_id=None, allow_pickle=None, patience=PATIENCE
    ):
        super().__init__()
        self.engine = engine if engine is not None else own_engine()
        self._place = _words.Place.parse(source, address)
        self._name = None if checkpoint_id is None else _words.checked_name(checkpoint_id)
        self._allows = self.engine._shares_secret if allow_pickle is None else bool(allow_pickle)
        self._patience = patience
        self._save = None
        self._stored, self._about, self._sizes = {}, {}, {}

    @property
    def checkpoint_id(self):
        return self._name

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self._name = _words.checked_name(checkpoint_id)
        self._save = None

    # Without `kwargs`, by which torch would ask again for a single rank's.
    def read_metadata(self):
        until = time.monotonic() + self._patience
        try:
            metadata, _, self._save = Source(self.engine, self._place, self._patience).metadata(self._name, until)
        except Unimplemented:
            # It holds no checkpoints; perhaps it pushes one.
            holder = Holder.of(self.engine)
            name = holder.pull(self._place.told(self.engine), patience=self._patience)
            self._place = holder.place
            metadata, _, self._save = Source(self.engine, self._place).metadata(name, until)
        return metadata

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        self._stored, self._about = metadata.storage_data, metadata.state_dict_metadata
        self._sizes = {
            MetadataIndex(fqn, chunk.offsets): chunk.sizes
            for fqn, about in self._about.items()
            if isinstance(about, TensorStorageMetadata)
            for chunk in about.chunks
        }

    def prepare_local_plan(self, plan):
        return dataclasses.replace(plan, storage_data=self._save)

    def prepare_global_plan(self, plans):
        if len({plan.storage_data for plan in plans}) > 1:
            raise NotFound(
                "the checkpoint was replaced while ranks began to load it: load again, or by its checkpoint_id",
                "CHECKPOINT_UNKNOWN",
            )
        return plans

    def read_data(self, plan, planner):
        places = {}
        for item in plan.items:
            stored = self._stored[item.storage_index]
            places.setdefault(stored.place, {}).setdefault(stored.number, (stored, []))[1].append(item)
        for place, items in places.items():
            self._read(Source(self.engine, place, self._patience), items.values(), planner)
        future = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        try:
            _words.checked_name(checkpoint_id)
        except (TypeError, ValueError):
            return False
        return True

    def _read(self, source, items, planner):
        is_near = source.is_near()
        wanted, uses = [], []
        for stored, reads in items:
            if is_near or not _is_less(reads, stored, planner):
                wanted.append((stored.number, None, None, stored.nbytes))
                uses.append((reads, False))
                continue
            for read in reads:
                part = (list(read.storage_offsets), list(read.lengths))
                nbytes = read.lengths.numel() * self._about[read.storage_index.fqn].properties.dtype.itemsize
                wanted.append((stored.number, *part, nbytes))
                uses.append(([read], True))
        with contextlib.closing(source.items(self._save, wanted)) as values:
            for value, (reads, is_part) in zip(values, uses, strict=True):
                for read in reads:
                    self._use(source, value, read, planner, is_part)

    def _use(self, source, value, read, planner, is_part):
        if read.type == LoadItemType.BYTE_IO:
            data = bytes(memoryview(value)) if value.nbytes else b""
            self._judge(source, data, read.storage_index.fqn)
            planner.load_bytes(read, io.BytesIO(data))
            return
        target = planner.resolve_tensor(read).detach()
        target.copy_(self._part(source, value, read, is_part))
        planner.commit_tensor(read, target)

    def _part(self, source, value, read, is_part):
        """The part that is read, as a view of what came."""
        about = self._about[read.storage_index.fqn]
        shape = read.lengths if is_part else self._sizes[read.storage_index]
        seen = _words.view(value, shape, about.properties.dtype, source.task)
        if is_part:
            return seen
        return seen[tuple(slice(at, at + n) for at, n in zip(read.storage_offsets, read.lengths, strict=True))]

    def _judge(self, source, data, fqn):
        """What runs code of the sender's is read from those that may run it here."""
        if self._allows or source.is_own:
            return
        try:
            torch.load(io.BytesIO(data), weights_only=True)
        except Exception:
            raise PermissionDenied(
                f"`{fqn}` of {source.task} is an object that only pickle can read: RendezReader(allow_pickle=True) if "
                "that task may run code here",
                "CHECKPOINT_PICKLE",
            ) from None


def _is_less(reads, stored, planner):
    """Whether the parts that are read are together less than the whole."""
    if any(read.type == LoadItemType.BYTE_IO for read in reads):
        return False
    parts = sum(read.lengths.numel() * planner.resolve_tensor(read).element_size() for read in reads)
    return parts < stored.nbytes
