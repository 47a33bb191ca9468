//! Remote calls: what can go wrong between a caller and the function it called.

catalogue! {
    /// Every reason of remote calls, references and groups of workers.
    OF_RPC;
    // ── Remote calls ──────────────────────────────────────────────────────────────────────────────────────────────
    RPC_TIMEOUT: DeadlineExceeded,
        "A call was not answered in its time; the other side was told to give it up.",
        "Give it more time, or find out what keeps the function from answering.";
    RPC_CANCELLED: Cancelled,
        "The caller gave the call up; the other side was told.",
        "Nothing, if it was meant.";
    RPC_REMOTE_ERROR: Unknown,
        "The function that was called returned an error; the error holds its message, cause and worker.",
        "Read the message.";
    RPC_REMOTE_PANIC: Internal,
        "The function that was called panicked; its worker goes on.",
        "Correct the function: the message is the panic's.";
    RPC_FUNCTION: NotFound,
        "The worker has no function of this name.",
        "Register it there before the agent starts, or correct the name.";
    RPC_ARGUMENTS: InvalidArgument,
        "A call's arguments, or its result, are not of the types that the other side has.",
        "Compare the call with the function's signature in the message.";
    RPC_WORKER: NotFound,
        "The group has no worker of this name.",
        "Correct the name, or wait until the worker has joined.";
    RPC_NAME: InvalidArgument,
        "A worker's name cannot be used, or two workers share it.",
        "Give each worker a name of its own, of letters, digits, `-`, `_` and `:`.";
    RPC_GROUP: FailedPrecondition,
        "Workers disagree about their group: its members, or how they meet.",
        "Give every worker the same list of workers, or let all of them join by the same store.";
    RPC_BUSY: ResourceExhausted,
        "The maximum number of calls is already waiting, at the caller or at the worker.",
        "Wait for some of them before calling more, or raise the bound that the message names.";
    RPC_INIT: DeadlineExceeded,
        "Not all workers of the group came up in time.",
        "Start the workers that the message names, or give them more time.";
    RPC_SHUTDOWN: FailedPrecondition,
        "The agent is shut down, or about to be.",
        "Start it again with `Agent::init`.";
    RPC_SHUTDOWN_DEADLINE: DeadlineExceeded,
        "The group did not come to rest in the time that shutdown was given; this worker has left anyway.",
        "Read the message: it names what was outstanding and the workers that did not agree.";
    RPC_LEAK: FailedPrecondition,
        "The program still held remote references when its worker left; the message names them.",
        "Drop them before shutdown, or leave `Options::refuse_leaks` false: then only the log names them.";
    RPC_REFERENCE: FailedPrecondition,
        "A remote reference names no value that can be used here.",
        "Read the message: it names the reference, its owner and what became of its value.";
    RPC_MESSAGE: DataLoss,
        "A worker sent something that is not a message; nothing else is dropped.",
        "Run the same release on all workers; if they do, report it with the message.";
    RPC_PICKLE: PermissionDenied,
        "A Python call needs pickle, which runs code of its sender, but one of the two sides does not allow that.",
        "Call registered functions with plain values, or set `allow_pickle=True` at both workers.";
    RPC_STORE: Unavailable,
        "The store that workers meet through cannot be used.",
        "Check that its file is writable for all workers, and that nothing else writes to it.";
}
