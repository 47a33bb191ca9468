"""What the two ends of a checkpoint say to each other: numbers of services, keys, places, and how tensors are held."""

import dataclasses
import json
import logging
import os
import re
import secrets

import torch

from ... import Key
from ..._errors import DataLoss, InvalidArgument, RendezError, Unimplemented

log = logging.getLogger("rendez.torch.checkpoint")

# Services of a holder; 48 to 51 are those of the command's pushes.
FIND_PUSH, TAKE_PUSH = 49, 50
ABOUT, FETCH, BEGIN, PUT, COMMIT = 56, 57, 58, 59, 60

#: The steps of checkpoints, one for each exchange: none of those that programs count up from zero, and not that of
#: pushes. Who asks ends it for both.
STEPS = range(2**63, 2**63 + 2**62)
#: The step of pushes.
PUSH_STEP = 2**64 - 2

#: Bytes, and pieces, that are asked for or given before some must have come.
WINDOW, PIECES = 256 << 20, 256
#: Bytes of the numbers of a request: a call's payload is bounded.
REQUEST = 32 << 10

#: How torch's types are carried; others travel as bytes.
CARRIED = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.uint16: "u16",
    torch.int32: "i32",
    torch.uint32: "u32",
    torch.int64: "i64",
    torch.uint64: "u64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a task is reached: by its address on its machine, by TCP from others."""

    task: str
    address: str = ""
    tcp_address: str = ""
    machine: str = ""

    @staticmethod
    def of(engine):
        """That of an engine of this process."""
        return Place(engine.task, engine.address or "", engine.tcp_address or "", machine())

    @staticmethod
    def parse(source, address=None):
        """A place, its text, or a task's name with an address."""
        if isinstance(source, Place):
            return source
        parts = str(source).split(" ")
        if len(parts) == 4:
            return Place(*("" if part == "-" else part for part in parts))
        if len(parts) != 1:
            raise InvalidArgument(f"{source!r} is no place: a task's name, or str(holder.place)", "PYTHON_ARGUMENT")
        task = re.sub(r"^(/job:[^/]+)(/task:\d+)$", r"\1/replica:0\2", parts[0])
        return Place(task, address or "", address or "", machine())

    def __str__(self):
        return " ".join(part or "-" for part in dataclasses.astuple(self))

    def told(self, engine):
        """Tells an engine of this place; gives the task's name."""
        # At its TCP address a task of this machine sends on to the other one, unless the settings of either demand TCP.
        is_near = self.machine == machine()
        way = self.tcp_address or (self.address if is_near else "")
        if not is_near and way.startswith(("0.0.0.0:", "[::]:")):
            raise InvalidArgument(
                f"{self.task} listens at {way}, which tells of no machine: set `listen` there to the address by which "
                "others reach it (RENDEZ_LISTEN=host:port)",
                "CONTROL_ADDRESS",
            )
        if way and self.task != engine.task:
            engine.add_peer(self.task, way)
        return self.task


def machine():
    """Where addresses of this machine are reached: the machine since its start, and the network namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}/{os.readlink('/proc/self/ns/net')}"


def key(source, destination, edge="checkpoint"):
    """A key from one task to another."""
    return Key(source, destination, edge)


def new_step():
    """The number of a step for one exchange."""
    return STEPS.start + secrets.randbelow(len(STEPS))


def step_of(said, peer):
    """The number of the step that a peer has chosen."""
    number = said.get("step")
    if not isinstance(number, int) or number not in STEPS:
        raise malformed(peer, f"{number} is no step of a checkpoint's")
    return number


def written(what):
    """A message, as bytes."""
    return json.dumps(what, separators=(",", ":")).encode()


def read(payload, peer):
    """A message of a peer's, which is a claim: a dict, or it is refused."""
    try:
        what = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise malformed(peer, f"it is no JSON: {error}") from None
    if not isinstance(what, dict):
        raise malformed(peer, "it is no object")
    return what


def malformed(peer, what):
    """The exception for what a peer should not have said."""
    return DataLoss(f"what {peer} said of a checkpoint does not fit together: {what}", "CHECKPOINT_MALFORMED")


def call(engine, task, method, said, patience):
    """Asks a task; what it cannot answer names it."""
    try:
        answer = engine._call(task, method, written(said), timeout=patience)
    except RendezError as error:
        if task in error.message:
            raise
        raise type(error)(f"{task}: {error.message}", error.reason) from None
    return read(answer, task) if answer else {}


def unsupported(message):
    return Unimplemented(message, "CHECKPOINT_UNSUPPORTED")


def checked_name(name):
    """A checkpoint's name: any text that is a file's name too."""
    text = os.fspath(name)
    if not isinstance(text, str) or not re.fullmatch(r"[^/\\\x00-\x1f\x7f]{1,200}", text) or text in (".", ".."):
        raise InvalidArgument(
            f"checkpoint_id={name!r}: here it is a name of 1 to 200 characters, without slashes", "PYTHON_ARGUMENT"
        )
    return text


def dtype_named(name, peer):
    """torch's type of that name."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise malformed(peer, f"`{name}` is no type of this PyTorch's")
    return found


def room(engine, shape, dtype):
    """Memory of the engine's for a tensor, and torch's view of it."""
    carried = CARRIED.get(dtype)
    if carried is not None:
        held = engine.empty(tuple(shape), carried)
        return held, held.torch()
    held = engine.empty(torch.Size(shape).numel() * dtype.itemsize, "u8")
    return held, held.torch().view(dtype).view(shape)


def view(tensor, shape, dtype, peer):
    """torch's view of a value that came: it must not be written to."""
    count = torch.Size(shape).numel()
    carried = CARRIED.get(dtype, "u8")
    dims = tuple(shape) if dtype in CARRIED else (count * dtype.itemsize,)
    if tensor.dtype != carried or tensor.shape != dims:
        raise malformed(peer, f"{tensor.dtype}{list(tensor.shape)} came for {dtype}{list(shape)}")
    lent = torch.from_dlpack(tensor)
    return lent if dtype in CARRIED else lent.view(dtype).view(shape)
