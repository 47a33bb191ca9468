"""The holder: checkpoints that a process keeps in its engine's memory, and what other tasks ask of it.

A checkpoint is a *save*: items (tensors, shards, pickled objects) under numbers, and the metadata that names them. The
items of one save may lie at several holders, its metadata at one, where readers find it.
"""

import dataclasses
import itertools
import os
import secrets
import threading
import weakref

import torch

from ... import Engine
from ..._errors import InvalidArgument, NotFound
from . import _files, _words
from ._words import ABOUT, BEGIN, COMMIT, FETCH, FIND_PUSH, PUT, TAKE_PUSH

#: Seconds that a value may take to be sent or to come while a call is carried out.
PATIENCE = 60.0
#: Seconds after which what a reader asked for, and did not take, goes at the latest.
FETCHED = 3600.0

_holders = weakref.WeakKeyDictionary()
_lock = threading.RLock()
_engines = {}


@dataclasses.dataclass(frozen=True)
class Item:
    """A value that is held, and what torch calls it."""

    tensor: object
    dtype: torch.dtype
    shape: torch.Size

    def view(self, holder):
        return _words.view(self.tensor, self.shape, self.dtype, holder)


@dataclasses.dataclass
class Save:
    """One checkpoint, or the part of it that is held here."""

    name: str
    items: dict
    #: What `_metadata.pack` wrote, once it is whole.
    metadata: object = None
    #: The `Round` of what this rank holds a part of; None where all of the save is kept here.
    round: object = None
    #: Who writes it, weakly, where its coordinator is here.
    writer: object = None

    def is_left(self, writer):
        """Whether its writer is gone, or begins another save: this one failed, which nothing else tells."""
        return self.writer is not None and self.writer() in (None, writer)


@dataclasses.dataclass(frozen=True)
class Round:
    """What the coordinator of a save tells all ranks: the save's number, its own task, which life of its holder and
    which of that one's rounds this is, and which of its saves it had when that began. A holder elsewhere (`to`) knows
    what it keeps: then there is only the number."""

    save: str
    coordinator: object = None
    life: object = None
    turn: int = 0
    kept: tuple = ()

    def drops(self, number, other):
        """Whether a save that a rank has is one of this coordinator's that it has let go. Ranks may hear of two rounds
        in either order: of a later one this knows nothing."""
        if other is None or other.coordinator != self.coordinator or number in self.kept:
            return False
        return other.life != self.life or other.turn < self.turn


def own_engine():
    """The engine of this process for checkpoints, started by the first that needs it; its task is RENDEZ_TASK's, or one
    that no other process has."""
    with _lock:
        engine = _engines.get(os.getpid())
        if engine is None or engine.closed:
            task = os.environ.get("RENDEZ_TASK") or f"/job:checkpoint_{secrets.token_hex(6)}_{os.getpid()}/task:0"
            engine = _engines[os.getpid()] = Engine(task)
        return engine


class Holder:
    """Keeps checkpoints in this process, for readers anywhere; `keep` of them, the newest.

    A writer makes one for its own process. Make one yourself in a process that keeps the checkpoints of others:
    `RendezWriter(to=holder.place)`. There is one for each engine, and it ends with the engine.
    """

    def __init__(self, engine=None, *, keep=1):
        self.engine = engine if engine is not None else own_engine()
        self.keep = max(int(keep), 1)
        self._lock = threading.Lock()
        self._saves = {}
        self._numbers = itertools.count(1)
        self._life, self._turns = secrets.token_hex(8), itertools.count(1)
        self._files = _files.Giver(self)
        with _lock:
            if self.engine in _holders:
                raise InvalidArgument(f"{self.engine.task} has a holder already: Holder.of(engine)", "PYTHON_ARGUMENT")
            _holders[self.engine] = weakref.ref(self)
        for method, answer in (
            (ABOUT, self._about),
            (FETCH, self._fetch),
            (BEGIN, self._begin),
            (PUT, self._put),
            (COMMIT, self._commit),
            (FIND_PUSH, self._files.find),
            (TAKE_PUSH, self._files.take),
        ):
            self.engine._serve(method, answer)

    @classmethod
    def of(cls, engine=None):
        """The holder of an engine; made if there is none."""
        engine = engine if engine is not None else own_engine()
        with _lock:
            found = _holders.get(engine)
            return (found and found()) or cls(engine)

    @property
    def place(self):
        """Where readers and writers reach it: what `RendezReader(…)` and `RendezWriter(to=…)` take."""
        return _words.Place.of(self.engine)

    @property
    def checkpoints(self):
        """The names of the checkpoints that are whole, the oldest first."""
        with self._lock:
            return [save.name for save in self._saves.values() if save.metadata is not None]

    @property
    def unfinished(self):
        """The names of the saves that have begun and are not whole: their writers are at it, or died. Nothing tells
        which from here: `drop` those that will not be whole."""
        with self._lock:
            return [save.name for save in self._saves.values() if save.metadata is None]

    def drop(self, checkpoint_id):
        """Lets a checkpoint go; readers that have its tensors keep those. So goes one that is not whole, as its writer
        died: see `unfinished`."""
        name = _words.checked_name(checkpoint_id)
        with self._lock:
            found = [number for number, save in self._saves.items() if save.name == name]
            for number in found:
                del self._saves[number]
        if not found:
            raise self._unknown(name)

    def pull(self, task, *, patience=PATIENCE):
        """Takes what `rendez push … --to` this engine's task pushes at `task`, now or later, and keeps it as a
        checkpoint, a flat state dict. Gives its name."""
        return _files.pull(self, task, patience)

    def plan(self, name, writer=None):
        """A save begins whose ranks keep their parts themselves, and whose metadata will be here. Gives its `Round`."""
        with self._lock:
            save, task = secrets.token_hex(8), self.engine.task

            def is_over(number, other):
                is_own = other.round is not None and other.round.coordinator == task
                return is_own and (other.name == name or other.is_left(writer))

            self._drop(is_over)
            told = Round(save, task, self._life, next(self._turns), (*self._saves, save))
            self._saves[save] = Save(name, {}, round=told, writer=writer and weakref.ref(writer))
            return told

    def join(self, told, name):
        """This rank's part of a save begins: what its coordinator has let go of its earlier ones goes. Parts of others'
        saves have their metadata elsewhere, so it is not known here whether they are whole: they stay."""
        with self._lock:
            for number in [number for number, other in self._saves.items() if told.drops(number, other.round)]:
                del self._saves[number]
            if told.coordinator != self.engine.task:
                self._saves.setdefault(told.save, Save(name, {}, round=told))

    def begin(self, save, name):
        """A save begins, all of which is kept here. What an earlier one of its name left unfinished goes."""
        with self._lock:
            self._drop(lambda number, other: number != save and other.name == name and other.round is None)
            self._saves.setdefault(save, Save(name, {}))

    def _drop(self, is_meant):
        """Lets saves go that are not whole."""
        for number, other in list(self._saves.items()):
            if other.metadata is None and is_meant(number, other):
                del self._saves[number]

    def give_up(self, save):
        """A save will not be whole."""
        with self._lock:
            if save in self._saves and self._saves[save].metadata is None:
                del self._saves[save]

    def put(self, save, item):
        """Keeps an item; gives its number."""
        with self._lock:
            number = next(self._numbers)
            self._open(save).items[number] = item
            return number

    def commit(self, save, metadata):
        """The save is whole. An earlier checkpoint of its name is replaced, and the oldest go that are too many."""
        with self._lock:
            done = self._open(save)
            done.metadata = metadata
            # The newest stand last.
            self._saves[save] = self._saves.pop(save)
            whole = [number for number, other in self._saves.items() if other.metadata is not None]
            for number in whole[:-1]:
                if self._saves[number].name == done.name:
                    del self._saves[number]
                    whole.remove(number)
            for number in whole[: -self.keep]:
                del self._saves[number]

    def newest(self, name):
        """The number, the name and the metadata of the newest checkpoint, or of the one of that name."""
        with self._lock:
            for number, save in reversed(self._saves.items()):
                if save.metadata is not None and name in (None, save.name):
                    return number, save.name, save.metadata
        raise self._unknown(name)

    def item(self, save, number):
        """An item of a save."""
        with self._lock:
            found = self._saves.get(save)
            item = found and found.items.get(number)
        if item is None:
            raise NotFound(
                f"{self.engine.task} no longer holds that checkpoint: a newer one has replaced it; load again, or keep "
                "more (keep=)",
                "CHECKPOINT_UNKNOWN",
            )
        return item

    def _open(self, save):
        found = self._saves.get(save)
        if found is None:
            raise NotFound(f"{self.engine.task} knows no save {save}: it was given up", "CHECKPOINT_UNKNOWN")
        return found

    def _unknown(self, name):
        what = "a checkpoint" if name is None else f"the checkpoint '{name}'"
        held = ", ".join(f"'{one}'" for one in self.checkpoints) or "none"
        return NotFound(f"{self.engine.task} does not hold {what}; it holds {held}", "CHECKPOINT_UNKNOWN")

    # What other tasks call.

    def _about(self, caller, payload):
        save, name, metadata = self.newest(_words.read(payload, caller).get("name"))
        return _words.written({"save": save, "name": name, "bytes": metadata.nbytes})

    def _fetch(self, caller, payload):
        asked = _words.read(payload, caller)
        save, number = str(asked.get("save")), _words.step_of(asked, caller)
        if asked.get("items") == "metadata":
            with self._lock:
                metadata = self._open(save).metadata
            values = [metadata]
        else:
            values = [self.part(save, one, caller) for one in _pieces(caller, asked)]
        # The reader ends it, unless it is lost.
        send(self.engine.step(number, deadline=FETCHED), self.engine.task, caller, values)
        return b"{}"

    def part(self, save, asked, caller):
        """An item's value, or a part of it as a copy: a number, and offsets and lengths or None."""
        if len(asked) != 3:
            raise _words.malformed(caller, f"{asked} is no item")
        number, offsets, lengths = asked
        item = self.item(save, number)
        if offsets is None:
            return item.tensor
        if not _within(offsets, lengths, item.shape):
            raise _words.malformed(caller, f"{lengths} at {offsets} is no part of a tensor of {list(item.shape)}")
        part = item.view(self.engine.task)[tuple(slice(at, at + n) for at, n in zip(offsets, lengths, strict=True))]
        return copied(self.engine, part).tensor

    def _begin(self, caller, payload):
        said = _words.read(payload, caller)
        self.begin(str(said.get("save")), _words.checked_name(str(said.get("name"))))
        return b"{}"

    def _put(self, caller, payload):
        said = _words.read(payload, caller)
        save, numbers = str(said.get("save")), []
        key = _words.key(caller, self.engine.task)
        with self.engine.step(_words.step_of(said, caller)) as step:
            for dtype, shape in _pieces(caller, said):
                dtype = _words.dtype_named(dtype, caller)
                value = step.recv(key).wait(PATIENCE)
                item = Item(value, dtype, torch.Size(shape))
                seen = item.view(caller)
                # What lies in the writer's memory goes with the writer.
                numbers.append(self.put(save, copied(self.engine, seen) if value.path == "lease" else item))
        return _words.written({"numbers": numbers})

    def _commit(self, caller, payload):
        said = _words.read(payload, caller)
        save = str(said.get("save"))
        with self._lock:
            metadata = self._open(save).items.pop(said.get("number"), None)
        if metadata is None:
            raise _words.malformed(caller, "its metadata was not put")
        self.commit(save, metadata.tensor)
        return b"{}"


def copied(engine, tensor):
    """A PyTorch tensor, copied once to the engine's memory."""
    held, into = _words.room(engine, tensor.shape, tensor.dtype)
    into.copy_(tensor)
    del into
    return Item(held.freeze(), tensor.dtype, tensor.shape)


def bytes_held(engine, data):
    """Bytes, copied once to the engine's memory."""
    held = engine.empty(len(data), "u8")
    if len(data):
        memoryview(held)[:] = data
    return Item(held.freeze(), torch.uint8, torch.Size([len(data)]))


def send(step, source, to, values):
    """Sends values in order."""
    key = _words.key(source, to)
    for value in values:
        step.send_wait(key, value).wait(PATIENCE)


def _pieces(caller, said):
    pieces = said.get("items")
    if not isinstance(pieces, list) or len(pieces) > _words.PIECES or not all(isinstance(one, list) for one in pieces):
        raise _words.malformed(caller, "it names no items, or too many")
    return pieces


def _within(offsets, lengths, shape):
    wholes = [*offsets, *lengths] if isinstance(offsets, list) and isinstance(lengths, list) else [None]
    return (
        all(isinstance(one, int) and one >= 0 for one in wholes)
        and len(offsets) == len(lengths) == len(shape)
        and all(at + n <= whole for at, n, whole in zip(offsets, lengths, shape, strict=True))
    )
