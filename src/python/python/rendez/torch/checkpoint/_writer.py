"""The writer: `torch.distributed.checkpoint` saves into the memory of this process, or of a holder elsewhere."""

import collections
import copy
import dataclasses
import secrets

import torch
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from . import _metadata, _words
from ._holder import PATIENCE, Holder, Round, bytes_held, copied, own_engine, send
from ._words import BEGIN, COMMIT, PUT


class RendezWriter(StorageWriter, AsyncStager):
    """Saves into memory: `dcp.save(state, storage_writer=RendezWriter())`.

    Each rank keeps its own shards, copied once to its engine's memory, and the coordinator keeps the metadata, so
    readers ask the coordinator (`writer.place`). With `to`, the place of a `Holder`, all of it is kept there instead,
    and outlives the ranks. `checkpoint_id` names the checkpoint; each holder keeps the newest `keep` of them.

    For `dcp.async_save` it stages too: tensors are copied once, to where they are kept.
    """

    def __init__(self, checkpoint_id="checkpoint", *, engine=None, to=None, keep=1, patience=PATIENCE):
        super().__init__()
        self._name = _words.checked_name(checkpoint_id)
        self.engine = engine if engine is not None else own_engine()
        self._to = None if to is None else _words.Place.parse(to)
        self._holder = None
        if self._to is None or self._to.task == self.engine.task:
            self._to, self._holder = None, Holder.of(self.engine)
            self._holder.keep = max(self._holder.keep, int(keep))
        self._patience = patience
        self._is_coordinator = False
        self._round = None
        #: What this rank told the others, where it is the coordinator.
        self._planned = None
        #: The save that was written last.
        self._written = None
        self._staged = {}

    @property
    def place(self):
        """Where readers ask for the checkpoint: the coordinator's, which is rank 0's."""
        return self._to if self._to is not None else self._holder.place

    @property
    def checkpoint_id(self):
        return self._name

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self._name = _words.checked_name(checkpoint_id)
        self._round = None

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if not kwargs.get("use_collectives", True):
            raise _words.unsupported(
                "a checkpoint in memory needs its ranks' coordination: save without use_collectives=False"
            )
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        is_here = self._holder is not None
        self._planned = told = self._holder.plan(self._name, self) if is_here else Round(secrets.token_hex(8))
        return [dataclasses.replace(plan, storage_data=told) for plan in plans]

    def write_data(self, plan, planner):
        told = plan.storage_data
        if getattr(planner, "_enable_plan_caching", False) or told.save == self._written:
            if self._holder is not None and self._planned is not None:
                self._holder.give_up(self._planned.save)
            raise _words.unsupported(
                "a plan of an earlier save names that save, so plans are not reused here: use a planner without "
                "enable_plan_caching"
            )
        self._round, self._written = told, told.save
        self._begin()
        results, batch, size = [], [], 0
        for item in plan.items:
            data = planner.resolve_data(item)
            held = bytes_held(self.engine, data.getbuffer()) if item.type == WriteItemType.BYTE_IO else self._held(data)
            batch.append((item.index, held))
            size += held.tensor.nbytes
            if size >= _words.WINDOW or len(batch) == 64:
                results += self._put(batch)
                batch, size = [], 0
        results += self._put(batch)
        self._staged.clear()
        future = Future()
        future.set_result(results)
        return future

    def finish(self, metadata, results):
        stored = {one.index: one.storage_data for each in results for one in each}
        save = self._round.save
        packed = bytes_held(self.engine, _metadata.pack(self._name, save, metadata, stored))
        if self._holder is not None:
            self._holder.commit(save, packed.tensor)
            return
        (number,) = self._numbers([packed])
        self._call(COMMIT, {"save": save, "number": number})

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        try:
            _words.checked_name(checkpoint_id)
        except (TypeError, ValueError):
            return False
        return True

    def storage_meta(self):
        return StorageMeta(checkpoint_id=self._name)

    def stage(self, state_dict):
        """A copy of the state, whose tensors lie already where they are kept."""
        self._staged.clear()
        return self._copy(state_dict)

    def synchronize_staging(self):
        """It has ended when `stage` returns."""

    def close(self):
        """Lets go of what was staged and not saved."""
        self._staged.clear()

    def __reduce__(self):
        raise _words.unsupported(
            "a RendezWriter stays in its process, since the checkpoint lies there: use "
            "async_checkpointer_type=AsyncCheckpointerType.THREAD, or `to=` and a writer of its own"
        )

    def _copy(self, value):
        if isinstance(value, DTensor):
            local = self._copy(value.to_local())
            return DTensor.from_local(
                local,
                value.device_mesh,
                value.placements,
                run_check=False,
                shape=value.size(),
                stride=value.stride(),
            )
        if type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and value.layout == torch.strided:
            held = copied(self.engine, value.detach())
            staged = held.view(self.engine.task)
            self._staged[staged.data_ptr()] = held
            return staged
        if type(value) in (dict, collections.OrderedDict):
            return type(value)((key, self._copy(one)) for key, one in value.items())
        if type(value) in (list, tuple):
            return type(value)(self._copy(one) for one in value)
        return copy.deepcopy(value)

    def _held(self, data):
        data = data.detach()
        if data.layout != torch.strided:
            raise _words.unsupported(f"a tensor of layout {data.layout} cannot be held: make it dense by .to_dense()")
        staged = self._staged.get(data.data_ptr()) if data.device.type == "cpu" and data.is_contiguous() else None
        if staged is not None and (staged.shape, staged.dtype) == (data.shape, data.dtype):
            return staged
        return copied(self.engine, data)

    def _begin(self):
        told = self._round
        if self._holder is None:
            self._to.told(self.engine)
            self._call(BEGIN, {"save": told.save, "name": self._name})
        elif told.coordinator is None:
            self._holder.begin(told.save, self._name)
        else:
            self._holder.join(told, self._name)

    def _put(self, batch):
        helds = [held for _, held in batch]
        place = self.place
        return [
            WriteResult(index, held.tensor.nbytes, _metadata.Stored(place, number, held.tensor.nbytes))
            for (index, held), number in zip(batch, self._numbers(helds), strict=True)
        ]

    def _numbers(self, helds):
        """Has items kept; gives their numbers there."""
        save = self._round.save
        if self._holder is not None:
            return [self._holder.put(save, held) for held in helds]
        if not helds:
            return []
        items = [[str(held.dtype).removeprefix("torch."), list(held.shape)] for held in helds]
        # In a step of its own: where it fails, what the holder did not take goes.
        with self.engine.step(_words.new_step()) as step:
            send(step, self.engine.task, self._to.task, [held.tensor for held in helds])
            said = self._call(PUT, {"save": save, "step": step.id, "items": items})
        numbers = said.get("numbers")
        if not isinstance(numbers, list) or len(numbers) != len(helds):
            raise _words.malformed(self._to.task, "it gave other numbers than were asked for")
        return numbers

    def _call(self, method, said):
        return _words.call(self.engine, self._to.task, method, said, self._patience)
