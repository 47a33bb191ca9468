"""Files of weights as `rendez push` and `rendez pull` hand them over, piece by piece: see the command's exchange.

The source sends by one key a manifest, then for each file its header, its tensors in order, and its SHA-256 in
hexadecimal digits. The destination answers each piece by a number, and all of them by a report; the source's last word
says that it has heard it. A source that fails sends a dead value that says why.
"""

import ctypes
import hashlib
import json
import math
import struct

import torch

from ..._errors import Code, DataLoss, DeadlineExceeded, RendezError, of
from . import _words
from ._words import PUSH_STEP, key

DATA, TAKEN, HEARD = "rendez.push.data", "rendez.push.taken", "rendez.push.heard"


class Line:
    """One exchange, as either end has it."""

    def __init__(self, engine, peer, patience):
        self.engine, self.peer, self.patience = engine, peer, patience
        self._step = engine.step(PUSH_STEP)
        self._next = None

    def listen(self, edge):
        """Begins to hear what comes by that key: the next is always waited for, so that a lost peer is known."""
        self._from = key(self.peer, self.engine.task, edge)
        self._next = self._step.recv(self._from).start()

    def hear(self, patience=None):
        """What comes next."""
        now, self._next = self._next, self._step.recv(self._from).start()
        try:
            return now.wait(patience or self.patience)
        except DeadlineExceeded:
            raise DeadlineExceeded(f"{self.peer} did not send all it should in time", "DEADLINE") from None

    def say(self, edge, value):
        self._step.send_wait(key(self.engine.task, self.peer, edge), value).wait(self.patience)

    def took(self):
        """Says that a piece was taken, or heard of: a number."""
        one, said = self.engine.empty((), "u64"), self.patience
        one.torch().fill_(1)
        self._step.send_wait(key(self.engine.task, self.peer, TAKEN), one).wait(said)

    def dead(self, why):
        """Says why nothing more comes."""
        self._step.send_dead(key(self.engine.task, self.peer, DATA), why)

    def last(self, edge, seconds):
        """Waits a while for the peer's last word."""
        try:
            self._step.recv(key(self.peer, self.engine.task, edge)).wait(seconds)
        except RendezError:
            pass

    def close(self):
        if self._next is not None:
            self._next.cancel()


def told(value, peer):
    """A message in JSON."""
    if value.dtype != "u8":
        raise _words.malformed(peer, f"{value.dtype} came where a text should")
    return _words.read(bytes(memoryview(value)), peer)


def failed(said, peer):
    """The exception for why a peer gave up."""
    if not isinstance(said, dict):
        return _words.malformed(peer, f"it gave up, and said {said!r} of why")
    code, message = said.get("code"), str(said.get("message"))
    known = code if isinstance(code, int) and 0 < code <= Code.UNAUTHENTICATED else Code.UNKNOWN
    return of(known, str(said.get("reason")), f"{peer} gave up: {message}", False)


def mismatch(what, peer):
    return DataLoss(f"{what} of {peer} is not what was sent", "DATA_MISMATCH")


class Digest:
    """The SHA-256 of a file that goes in pieces."""

    def __init__(self):
        self._sum = hashlib.sha256()

    def header(self, header):
        self._sum.update(struct.pack("<Q", len(header)))
        self._sum.update(header)

    def text_of(self, text):
        self._sum.update(text)

    def piece(self, value):
        """A tensor's bytes, where they lie."""
        if value.nbytes:
            seen = torch.from_dlpack(value)
            self._sum.update((ctypes.c_char * value.nbytes).from_address(seen.data_ptr()))

    def text(self):
        return self._sum.hexdigest()


def header_of(entries, about):
    """The header of a file of weights: `entries` are names, safetensors' types, shapes and bytes, in order."""
    said, at = {"__metadata__": about}, 0
    for name, kind, shape, nbytes in entries:
        said[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(said, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8), at


def files_of(manifest, peer):
    """The files that a manifest names, each a dict."""
    files = manifest.get("files") or []
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise _words.malformed(peer, "its manifest names no files")
    return files


def entries_of(header, nbytes, peer):
    """The tensors that a header promises of a file of so many bytes, in order: name, type, shape, bytes."""
    said = _words.read(header, peer)
    said.pop("__metadata__", None)
    entries, at = [], 0
    try:
        for name, about in sorted(said.items(), key=lambda one: one[1]["data_offsets"]):
            begin, end = about["data_offsets"]
            shape = about["shape"]
            if begin != at or end < begin or not all(isinstance(one, int) and 0 <= one < 2**63 for one in shape):
                raise ValueError(f"`{name}` lies at {begin} to {end}")
            if math.prod(shape) >= 2**63:
                raise ValueError(f"`{name}` has more elements than PyTorch can count")
            entries.append((name, str(about["dtype"]), shape, end - begin))
            at = end
    except (KeyError, TypeError, ValueError) as error:
        raise _words.malformed(peer, f"its header: {error}") from None
    if 8 + len(header) + at != nbytes:
        raise _words.malformed(peer, f"its header describes {at} bytes of data, and the file has another number")
    return entries


def slow(nbytes):
    """Seconds that the last word may take more, for a disk of 10 MiB a second."""
    return nbytes / (10 << 20)
