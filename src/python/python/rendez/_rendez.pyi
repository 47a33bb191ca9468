"""The extension module: what `rendez` gives names to.

For other extensions, in C or C++:

`_C_API` is a `PyCapsule` named `rendez._C_API`. Its pointer is a `const rendez_api *`, the table of `rendez.h` that
`rendez_get_api(RENDEZ_API_VERSION)` gives; it is never freed. `PyCapsule_Import("rendez._C_API", 0)` gets it: nothing
is linked. Check `version` (equal to RENDEZ_API_VERSION) and `size` (at least the offset of the last function used,
plus its own) before the first call.

`Engine._c_engine()` gives a new `PyCapsule` named `rendez.engine`. Its pointer is a `rendez_engine *` of the very
engine that Python has, for every function of the table that takes one. The capsule owns that handle: keep the capsule
as long as the handle is used, and never call `engine_free` on it. Its destructor cancels the receives whose callbacks
(`recv_async`) are still to come, and waits, without the interpreter's lock, until they have been called. An engine that
has been closed stays valid as a handle: its calls return the status SHUTDOWN.

Functions of the table may be called with the interpreter's lock or without; those that wait (`recv`, `send` with
patience, `engine_shutdown`) should be called without. Callbacks and release hooks run on threads of the engine, without
the lock: they must not wait for it where a shard turns, as in a release hook; `recv_async`'s callbacks may.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, Self, SupportsIndex, TypeVar, final, overload

from ._types import Filled, KeyLike, Pending, TensorLike
from .rpc._setup import Reference, Worker, World

_T_co = TypeVar("_T_co", covariant=True)
_R = TypeVar("_R")
_Path = Literal["local", "inline", "lease", "copy"]

__version__: str
_C_API: object

def _at_exit() -> None: ...
def _run_errands() -> None: ...
def _log_from(level: int, /) -> None: ...
def _listen(wakes: Wakes, /) -> None: ...
def _next_told() -> tuple[Callable[..., object], tuple[object, ...]] | None: ...
def _end_calls() -> None: ...
def _end_services() -> None: ...
def _end_threads() -> None: ...
def _is_called() -> bool: ...

@final
class Key:
    """What a value is sent and received by. Made once, it is faster than its text."""

    def __new__(cls, source: str, destination: str, edge: str) -> Self:
        """From a task or device to another: `Key("worker", "server", "loss")`."""
    @staticmethod
    def parse(text: str) -> Key:
        """Of `source->destination;name`, or of a key's full text."""
    def at(self, frame: int, iteration: int = 0) -> Key:
        """The same key in an iteration of a loop."""
    @property
    def source(self) -> str: ...
    @property
    def destination(self) -> str: ...
    @property
    def edge(self) -> str: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Engine:
    """One task of a cluster. `with` ends it."""

    def __new__(
        cls,
        task: str | None = None,
        *,
        config: str | PathLike[str] | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Self:
        """Starts it.

        `config` is a file of settings, or a table that takes its place; without it the usual files are looked for. The
        environment's `RENDEZ_*` go before a file, and `settings`, with the names of the reference of settings, before
        both. Where nothing says otherwise, there is one shard, and it shares its core.
        """
    @property
    def task(self) -> str: ...
    @property
    def address(self) -> str | None:
        """Where tasks of this machine reach it."""
    @property
    def tcp_address(self) -> str | None:
        """Where tasks of other machines reach it."""
    @property
    def shards(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def add_peer(self, task: str, address: str) -> None:
        """Says where a task is found. It is dialled when a key first names it."""
    def connect(self, task: str, *, timeout: float = 10.0) -> str:
        """Connects to a peer, and waits until that is done: the way to it."""
    def explain(self, peer: str, *, timeout: float = 2.0) -> str:
        """The way to a peer, why this one, and why no better; or why it cannot be reached."""
    def step(self, id: int, *, deadline: float | None = None) -> Step:
        """The step of that number; with a deadline it ends with `DeadlineExceeded` unless it has ended by then."""
    def empty(
        self,
        shape: SupportsIndex | tuple[int, ...] | list[int],
        dtype: Any = None,
        *,
        paged: bool = False,
        device: str = "cpu",
    ) -> TensorMut:
        """The engine's memory to write a value to, of f32 unless `dtype` says otherwise.

        What is sent in it is not copied, and a peer of this machine reads it where it lies. `paged` gives it pages of
        its own, which receivers may map to write to them; it is for large values. On a `device`, as `cuda:0`, libraries
        write it by DLPack; the value is there when the work is done of those whose views are gone.
        """
    def to(self, value: TensorLike, device: str, /) -> Tensor:
        """A value in the memory of `device`: `cpu`, `cuda`, or `cuda:1` for the second.

        A tensor that lies there is given as it is. Any other is copied; a copy to a device may be under way when this
        returns, and can be sent.
        """
    def devices(self) -> list[dict[str, Any]]:
        """The devices that it uses, by the setting `devices`, and what it has of their memory."""
    def send(
        self,
        key: KeyLike,
        value: TensorLike,
        *,
        copy: bool | None = None,
        on_release: Callable[[], object] | None = None,
    ) -> None:
        """As `Step.send`, in step 0, which is never over: each of its keys is remembered, so they should recur."""
    def send_dead(self, key: KeyLike) -> None: ...
    def recv(self, key: KeyLike, *, timeout: float | None = None) -> Recv[Tensor]:
        """As `Step.recv`, in step 0."""
    def recv_into(self, key: KeyLike, out: TensorLike, *, timeout: float | None = None) -> Recv[Filled]: ...
    def pending(self) -> list[Pending]:
        """All that waits or is parked here, the oldest first."""
    def stats(self) -> list[dict[str, int]]:
        """What each shard has counted, and holds now."""
    def metrics(self) -> str:
        """The metrics, as Prometheus reads them."""
    def close(self, timeout: float | None = None) -> None:
        """
        Ends the task: what is under way has so many seconds to arrive, and what waits then fails. None stands for the
        setting `drain_timeout`, `math.inf` for no bound. A tensor that a peer has received and reads in place can be
        read there afterwards too; one of a device is under way as long as the peer holds it.
        """
    @property
    def _shares_secret(self) -> bool: ...
    def _serve(self, method: int, function: Callable[[str, bytes], bytes] | None, /) -> None: ...
    def _call(self, task: str, method: int, payload: bytes, /, *, timeout: float = 10.0) -> bytes: ...
    def _c_engine(self) -> object: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Step:
    """A scope of values that end together. `with` finishes it, or has it end with what was raised."""

    @property
    def id(self) -> int: ...
    def send(
        self,
        key: KeyLike,
        value: TensorLike,
        *,
        copy: bool | None = None,
        on_release: Callable[[], object] | None = None,
    ) -> None:
        """Hands a value over, and never waits for its receiver. Of a masked array the mask is not sent.

        Where there is no room for it this raises `ResourceExhausted`, also in a loop that is faster than the engine;
        `send_wait` waits.

        Python's memory is copied to the engine's once, so it may be changed at once; `bytes`, which nothing can
        change, are read where they lie. `copy=False` has all memory read where it lies: it must not change until
        `on_release` is called, on a thread of rendez's that calls one such function after the other and logs the
        engine's lines. It is called once, also if this raises. The engine's tensors are never copied here. A
        `TensorMut` is gone then; if this raises it can be sent again, and not be written any more.

        An array on a CUDA device is copied on that device, behind the work of its stream, and this waits for the copy.
        With `copy=False` nothing waits where the receiver reads it in place: the value can be sent before it is there. To
        all others it goes by way of the processor's memory, and this waits until it is copied there.
        """
    def send_wait(
        self,
        key: KeyLike,
        value: TensorLike,
        *,
        timeout: float | None = None,
        copy: bool | None = None,
        on_release: Callable[[], object] | None = None,
    ) -> Sending:
        """The same, and waits for room where `send` is refused: await it, or call `wait`.

        It waits for room in the shard's mailbox, among what is parked, and in the engine's memory (`MAILBOX_FULL`,
        `PARKED_BYTES`, `ARENA_FULL` and others). What waits for memory is copied, and has its place among the values of
        its key, once there is some: leave it as it is until this has ended. `empty` and devices' memory are not waited
        for.

        A value on a device that cannot be read in place where it goes is copied to the processor's memory when this is
        awaited or waited for; its place among the values of its key is taken then.
        Where one of the two fails, a `TensorMut` can be sent again; so it can if a call does not begin.
        """
    def send_dead(self, key: KeyLike, why: TensorLike | None = None) -> None:
        """Tells the receiver that no value will come; `why` is what it gets in its place."""
    def recv(self, key: KeyLike, *, timeout: float | None = None) -> Recv[Tensor]:
        """The next value of a key: await it, or call `wait`. It begins then, or by `start`."""
    def recv_into(self, key: KeyLike, out: TensorLike, *, timeout: float | None = None) -> Recv[Filled]:
        """The same, copied to `out`: of its type and shape, or plain bytes in a row that are enough.

        An `out` whose elements do not follow each other in memory, or are big-endian, is refused at once, and nothing
        is received: a copy of it would be filled in its place.
        """
    def abort(self, reason: str = ...) -> None:
        """Ends it with an error: all that waits in it, on every task, fails."""
    def finish(self) -> None:
        """Ends it here: what it holds is dropped."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class Operation(Generic[_T_co]):
    """A pending operation. Several threads may wait for it and several tasks may await it."""

    def wait(self, timeout: float | None = None) -> _T_co:
        """Blocks until it has ended, without the interpreter's lock; the thread drives the engine meanwhile.

        After `timeout` seconds this raises `DeadlineExceeded`, and the operation goes on: as long as it is held. A send
        that has not ended is given up with it.
        """
    def cancel(self) -> bool:
        """Gives it up. True if it had not ended; the value of a receive is the next receive's then.

        Where another thread waits for it, this returns when that one has let go of it, within some 50 ms; not so for
        calls, whose answer is no other's.
        """
    def done(self) -> bool:
        """Whether it has ended. It begins now if it has not: a receive takes its place among those of its key."""
    def start(self) -> Self:
        """Begins now, to be waited for later."""
    def result(self) -> _T_co:
        """Its outcome, if it has ended."""
    def cancelled(self) -> bool:
        """True if it was given up."""
    def add_done_callback(self, function: Callable[[Self], object], /) -> None:
        """Has `function` called once it has ended, on the thread that calls all such functions, one after the other.

        So a function should not wait, least of all for another to be called.
        """
    def __await__(self) -> Generator[Any, Any, _T_co]: ...
    def _poll(self, wakes: Wakes, number: int, /) -> bool: ...
    def _is_alone(self) -> bool: ...
    def _linger(self, wakes: Wakes, nanos: int, /) -> bool: ...

@final
class Recv(Operation[_T_co]):
    """A receive."""

@final
class Sending(Operation[None]):
    """A send that waits for room."""

@final
class Tensor:
    """A value that came. It is read only, and may lie in its sender's memory, which `release` gives back."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> str:
        """As `f32`."""
    @property
    def nbytes(self) -> int: ...
    @property
    def path(self) -> _Path:
        """The way it came: within this process, in a frame, read in place, or copied."""
    @property
    def device(self) -> str:
        """Where it lies: `cpu`, or `cuda:0`."""
    def cpu(self) -> Tensor:
        """Itself, or a copy in the processor's memory of what lies on a device."""
    @property
    def dead(self) -> bool:
        """It says that no value will come."""
    def reshape(self, shape: list[int] | tuple[int, ...], /) -> Tensor: ...
    def recast(self, dtype: Any, /) -> Tensor:
        """The same bytes as elements of another type of the same size."""
    def writable(self, engine: Engine, /) -> TensorMut:
        """One that may be written: a copy, of which only the pages that are written if the value owns its pages."""
    def release(self) -> None:
        """Gives the memory back. Views of it stay valid until they are gone."""
    def numpy(self) -> Any:
        """A view as a NumPy array, which is not writable."""
    def torch(self, *, writable: Literal["private", "copy"] = "private") -> Any:
        """As a PyTorch tensor, which may be written to, as all of them; no write reaches the sender.

        `private` maps the pages of a value that owns its pages, and else copies.
        """
    def tolist(self) -> Any: ...
    def item(self) -> Any:
        """The only element, as a Python number."""
    def tobytes(self) -> bytes: ...
    def strings(self) -> list[bytes]:
        """The strings of a tensor of strings, in row-major order."""
    def __float__(self) -> float: ...
    def __int__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Lends it. A consumer on a device passes its stream, which must live as long as what is made of the capsule.

        It is read only, which PyTorch does not know: a write to what `torch.from_dlpack` makes of it ends the process,
        or changes what others read. `torch()` makes a tensor that may be written.
        """
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Where it lies on a CUDA device, in order with the default stream. Missing on the processor."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class TensorMut:
    """Memory to write a value to. `send` takes it away; views must be gone by then."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> str:
        """Where it lies: `cpu`, or `cuda:0`."""
    def recast(self, dtype: Any, /) -> TensorMut:
        """The same memory as elements of another type of the same size, neither of them `bool`."""
    def freeze(self) -> Tensor:
        """The value, written no more: it may be sent any number of times. Views must be gone; this is gone then."""
    def release(self) -> None: ...
    def numpy(self) -> Any:
        """A view as a NumPy array, which may be written to."""
    def torch(self) -> Any:
        """A view as a PyTorch tensor."""
    def tolist(self) -> Any: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Wakes:
    """An eventfd, and the numbers of what can go on."""

    def __new__(cls) -> Self: ...
    def fileno(self) -> int: ...
    def drain(self) -> list[int]: ...
    def ring(self, token: int) -> None: ...
    def _patience(self) -> int: ...
    def wait(self, timeout: float | None = None) -> None: ...

@final
class Agent:
    """One worker of a group, on an engine: `rendez.rpc.Agent`. `with` leaves the group.

    Leaving waits until all workers want to leave and all calls are done; where the block raises, it does not.
    """

    def __new__(
        cls,
        engine: Engine,
        name: str,
        *,
        world: World | None = None,
        store: str | PathLike[str] | Store | None = None,
        size: int | None = None,
        group: str = "rpc",
        functions: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]] | None = None,
        timeout: float | None = 60.0,
        init_timeout: float | None = 60.0,
        threads: int = 16,
        allow_pickle: bool | None = None,
        in_order: bool = False,
        refuse_leaks: bool = False,
    ) -> Self:
        """Starts it, and waits until all workers are there.

        `world` names all workers, each with its task and, where the engine does not know it, its address; the same, in
        the same order, at all. Or they meet by `store`: a file's path, `host:port` of a `Store` or of PyTorch's
        `TCPStore`; `size` of them, or with None a group that workers join and leave as they like.

        `functions` are this agent's alone, beside those that `function` has registered. A call may take `timeout`
        seconds, None for no limit. `allow_pickle` is where workers may run any code of each other's; unless it is said,
        it is allowed where the engine was given the cluster's secret.
        """
    @property
    def name(self) -> str: ...
    @property
    def id(self) -> int: ...
    @property
    def engine(self) -> Engine:
        """The engine that it runs on: `engine.empty` is memory from which results go without a copy."""
    @property
    def allow_pickle(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def workers(self) -> list[Worker]: ...
    def signatures(self, to: str) -> list[str]:
        """The signatures of the functions that a worker has for programs in all languages."""
    def references(self) -> list[Reference]:
        """What this worker knows of references: its values that others may use, and its shares of values elsewhere."""
    @overload
    def call(self, to: str, function: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any: ...
    @overload
    def call(
        self,
        to: str,
        function: Callable[..., Awaitable[_R]],
        /,
        *args: Any,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> _R: ...
    @overload
    def call(
        self, to: str, function: Callable[..., _R], /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> _R:
        """Calls a function at a worker, and waits for its result, without the interpreter's lock.

        `function` is a function or its name. `timeout` overrides the agent's; `math.inf` is no limit.
        """
    @overload
    def call_async(
        self, to: str, function: str, /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> Call[Any]: ...
    @overload
    def call_async(
        self,
        to: str,
        function: Callable[..., Awaitable[_R]],
        /,
        *args: Any,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Call[_R]: ...
    @overload
    def call_async(
        self, to: str, function: Callable[..., _R], /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> Call[_R]:
        """The same, and does not wait: await it, or call `wait`. It is under way at once.

        But the first call to a worker by a function's name asks it for its signatures, and waits for the answer before
        this returns, in an event loop too: await `asyncio.to_thread(agent.signatures, to)` before.
        """
    @overload
    def remote(
        self, to: str, function: str, /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> RRef[Any]: ...
    @overload
    def remote(
        self,
        to: str,
        function: Callable[..., Awaitable[_R]],
        /,
        *args: Any,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> RRef[_R]: ...
    @overload
    def remote(
        self, to: str, function: Callable[..., _R], /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> RRef[_R]:
        """Calls a function at a worker, and leaves its result there: the reference to it comes back at once.

        The first call of a worker by a name waits until it has said what it offers, as `call_async` does.
        """
    def _read(self, bytes: bytes, /) -> Any: ...
    def _take_for_foreign(self, to: str, /) -> None: ...
    def shutdown(self, *, graceful: bool = True, timeout: float | None = None) -> None:
        """Leaves the group: when all workers want to and all calls are done, or with `graceful=False` at once."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Call(Operation[_T_co]):
    """A call: `cancel`, or the end of the task that awaits it, tells the other side that it is given up."""

@final
class RRef(Generic[_T_co]):
    """A reference to a value that lives at its owner; it may be an argument and a result of calls."""

    def __new__(cls, agent: Agent, value: _T_co) -> Self:
        """A reference to a value of this worker's own."""
    @property
    def owner(self) -> str:
        """The name of the worker where the value lives."""
    @property
    def owner_id(self) -> int: ...
    @property
    def is_owner(self) -> bool: ...
    @property
    def confirmed(self) -> bool:
        """True if the owner has confirmed that it knows this reference."""
    def local_value(self) -> _T_co:
        """The value, at its owner: the very object. Waits until it is there."""
    def to_here(self, *, timeout: float | None = None) -> _T_co:
        """Waits for a copy of the value; at its owner, for the value."""
    def to_here_async(self, *, timeout: float | None = None) -> Call[_T_co]: ...
    def rpc_sync(self, *, timeout: float | None = None) -> Any:
        """The value's methods, called where it lives: `rref.rpc_sync().method(1)` waits for the result."""
    def rpc_async(self, *, timeout: float | None = None) -> Any:
        """The same; each call is awaited, or waited for."""
    def remote(self, *, timeout: float | None = None) -> Any:
        """The same; each result stays there, and a reference to it comes back."""
    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None) -> Call[Any]: ...
    def _remote(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None) -> RRef[Any]: ...

@final
class Served:
    """A call that is carried out, as `rendez.rpc.current()` gives it."""

    @property
    def agent(self) -> Agent:
        """The agent that carries it out, for calls of one's own."""
    @property
    def caller(self) -> str:
        """The name of the worker that called."""
    @property
    def function(self) -> str: ...
    @property
    def cancelled(self) -> bool:
        """True once the caller has given the call up, or its time is over."""
    @property
    def time_left(self) -> float | None:
        """For how many seconds the caller still waits; None for ever."""

@final
class Store:
    """A store of keys that workers meet through, in this process. Who reaches its port may change what it holds."""

    def __new__(cls, address: str = "127.0.0.1:0") -> Self: ...
    @property
    def address(self) -> str:
        """Where it listens."""
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Promise:
    def finish(self, value: Any, /) -> None: ...
    def fail(self, error: BaseException, /) -> None: ...
