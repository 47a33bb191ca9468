//! Steps: what can go wrong with keys, steps and receives, and the bounds and bytes of handing over.

catalogue! {
    /// Every reason of keys, steps and receives, of bounds, of RDMA and of bytes from outside.
    OF_STEPS;
    // ── Names ──────────────────────────────────────────────────────────────────────────────────────────────────────
    KEY_MALFORMED: InvalidArgument,
        "The text is not a key: `source;incarnation;destination;edge;frame:iteration` with two full device names.",
        "Build keys with `Key::new` or `Key::between` instead of by hand; in Python write `source->destination;name`.";
    DEVICE_MALFORMED: InvalidArgument,
        "The text is not a device name, or is a partial one where a full one is needed.",
        "Write a task as `/job:<job>/task:<n>`, a device as `/job:<job>/replica:<n>/task:<n>/device:<TYPE>:<n>`.";
    DEVICE_CONFLICT: InvalidArgument,
        "Two device names that should be one contradict each other.",
        "Leave unset what may differ, or merge with soft placement.";
    DEVICE_FOREIGN_SOURCE: InvalidArgument,
        "A value was sent under a key whose source is another task.",
        "Send on the task that the key names as its source.";
    DEVICE_FOREIGN_DESTINATION: InvalidArgument,
        "A value was asked for under a key whose destination is another task.",
        "Receive on the task that the key names as its destination.";
    KEY_DIRECTION: InvalidArgument,
        "A peer asked for a value that only the peer itself can make.",
        "Run the same release on all tasks; if they do, report it with the message.";
    // ── Steps and receives ─────────────────────────────────────────────────────────────────────────────────────────
    STEP_ABORTED: Aborted,
        "The step was aborted; this is the first status it was given, or a consequence of it.",
        "Look for the root failure: the status of this step that is not derived.";
    STEP_FINISHED: Aborted,
        "The step is over and cleaned up; the request came too late.",
        "Start a new step. If you did not expect this, find out which task finished the old one early.";
    STEP_ENDED: Aborted,
        "The step ended while a value was on its way to be parked.",
        "Nothing if the step was meant to end; otherwise as for STEP_FINISHED.";
    STEP_UNCLAIMED: Aborted,
        "Peers ran the step, but it was not used here in time.",
        "Start the step on every task that takes part in it.";
    RECV_CANCELLED: Cancelled,
        "The receive was cancelled before its value came.",
        "Nothing: the caller cancelled it.";
    VALUE_DEAD: FailedPrecondition,
        "A dead value was read: its sender says that nothing will come.",
        "Look at `Received::is_dead` first, where a sender may send dead values.";
    RECV_ROOM: InvalidArgument,
        "A value is longer than the memory it was to be copied to. It was not taken.",
        "Receive it again, into as many bytes as the message says.";
    SEND_CANCELLED: Cancelled,
        "A send was cancelled while it waited for room: its value was not taken.",
        "Nothing: the caller cancelled it. The error holds the tensor.";
    DEADLINE: DeadlineExceeded,
        "The value did not come, or found no room, or its step had not ended, before the deadline.",
        "The list of pending keys shows which task owes it; raise the deadline if the producer is just slow.";
    // ── Limits ─────────────────────────────────────────────────────────────────────────────────────────────────────
    PARKED_BYTES: ResourceExhausted,
        "The values that wait for a receiver already hold the maximum number of bytes.",
        "Receive sooner, send later, or raise the limit named in the message.";
    PARKED_BYTES_OF_STEP: ResourceExhausted,
        "The values of one step that wait for a receiver already hold the maximum number of bytes.",
        "Receive sooner, send later, or raise the limit named in the message.";
    PARKED_VALUES: ResourceExhausted,
        "The maximum number of values is already waiting for a receiver.",
        "Receive sooner, or send later.";
    OFFERS_EXHAUSTED: ResourceExhausted,
        "Peers have offered more large values than may wait for a receiver.",
        "Receive sooner, send later, or spread the keys over more shards.";
    WAITERS: ResourceExhausted,
        "The maximum number of receives is already waiting.",
        "Ask for fewer values at once.";
    WAITERS_OF_KEY: ResourceExhausted,
        "The maximum number of receives is already waiting for one key.",
        "Ask for fewer values at once.";
    KEYS: ResourceExhausted,
        "The maximum number of keys, or of tasks that they name, is already in use.",
        "Finish steps that are over, use keys of step 0 again, and release prepared keys of tasks that are gone.";
    STEPS: ResourceExhausted,
        "The maximum number of steps is already alive.",
        "Finish steps that are over.";
    GRACE_STEPS: ResourceExhausted,
        "Peers have already begun the maximum number of steps that this task has not used yet.",
        "Start steps on all tasks at about the same time.";
    WAITING_SENDS: ResourceExhausted,
        "The maximum number of sends is already waiting for room in the shard.",
        "Wait for some of them before sending more, or send on fewer threads.";
    SEND_BEHIND: ResourceExhausted,
        "Earlier values of the key wait for room: a send that does not wait may not overtake them.",
        "Wait for the earlier sends first, or send this value with `send_async` too.";
    MAILBOX_FULL: ResourceExhausted,
        "The shard takes commands more slowly than they are given.",
        "Send with `Step::send_async`, which waits for room (in Python `send_wait`, in C with a patience); repeat \
         whatever else was refused; or use more shards, or raise the setting if the message names one.";
    LANDING_UNOPENED: ResourceExhausted,
        "The fabric could not register memory in time for a value that a peer offered.",
        "Raise the limit of locked memory, or have fewer large values under way at once.";
    ARENA_FULL: ResourceExhausted,
        "The arena has no free stretch that is long enough for the tensor, and may not grow by one.",
        "Drop tensors that are no longer needed, in Python send arrays with `send_wait`, which waits for room, \
         or raise the arena's limit to at least twice the largest tensor.";
    ARENA_UNFIT: ResourceExhausted,
        "The tensor is larger than the arena may become.",
        "Raise the arena's limit above the largest tensor.";
    LEASES_OUT: ResourceExhausted,
        "Peers already lend the maximum number of tensors.",
        "Drop received tensors sooner.";
    HUGE_PAGES_NONE: FailedPrecondition,
        "Huge pages are required, and the kernel has none left.",
        "Reserve more, or set huge pages to auto.";
    KERNEL_UNSEALING: FailedPrecondition,
        "The kernel cannot seal shared memory.",
        "Run Linux 5.1 or later.";
    SYSTEM_CALL: Internal,
        "A system call failed; the message names it and its error number.",
        "Look the error number up in the call's manual page.";
    SYSTEM_LIMIT: ResourceExhausted,
        "The system provides no more descriptors, memory or file space; the message names call and error number.",
        "Raise the limit on open files (`ulimit -n`), their length (`ulimit -f`) or address space (`ulimit -v`), or \
         give the machine more memory.";
    // ── RDMA ───────────────────────────────────────────────────────────────────────────────────────────────────────
    VERBS_MISSING: FailedPrecondition,
        "RDMA was asked for, but libibverbs cannot be loaded.",
        "Install rdma-core: on Debian the packages libibverbs1 and ibverbs-providers. Or choose another transport.";
    VERBS_NO_DEVICE: NotFound,
        "There is no RDMA device, active port or address that matches the settings.",
        "`ibv_devinfo` lists the devices, `ip link` shows a port that is down; correct the device, port or GID index.";
    VERBS_CALL: Internal,
        "A verbs call failed; the message names it, its error number and the device.",
        "Look the error number up in the call's manual page; `ibv_devinfo -v` says what the device can do.";
    VERBS_SETTING: InvalidArgument,
        "An RDMA setting is out of its range, or beyond what the device can do.",
        "Correct the setting named in the message.";
    VERBS_ENDPOINT: FailedPrecondition,
        "A peer's description of its end of a queue pair is invalid.",
        "Run the same release on all tasks; if they do, report it with the message.";
    VERBS_LIMIT: ResourceExhausted,
        "An RDMA device, or the engine's queues on it, have reached a limit.",
        "Use fewer peers or shards for each device, or raise the limit named in the message.";
    VERBS_COMPLETION: Unavailable,
        "An RDMA operation ended with an error, and its queue pair with it.",
        "The message explains the status; if the peer is still there, a new connection reaches it again.";
    // ── Bytes from outside ─────────────────────────────────────────────────────────────────────────────────────────
    FRAME_MALFORMED: DataLoss,
        "A peer sent a frame that breaks the protocol; the channel is closed.",
        "Run the same release on all tasks; if they do, report it with the message.";
    RING_CORRUPT: DataLoss,
        "A ring in shared memory holds data that no correct peer writes.",
        "Restart the peer; if it happens again, report it with the message.";
    DESCRIPTOR_UNSEALED: PermissionDenied,
        "A peer offered shared memory that it could still shrink or write elsewhere; it was not mapped.",
        "Run the same release on all tasks.";
    DESCRIPTOR_SHORT: InvalidArgument,
        "A peer offered shared memory whose length is not the one it announced; it was not mapped.",
        "Run the same release on all tasks.";
    DESCRIPTOR_KIND: FailedPrecondition,
        "A peer offered memory of a kind that this task does not import; it was not mapped.",
        "Run the same release on all tasks.";
    LANDING_RANGE: OutOfRange,
        "A peer named bytes outside the memory it was given.",
        "Run the same release on all tasks; if they do, report it with the message.";
    REGION_OUTSIDE: OutOfRange,
        "A peer named bytes outside the memory it offered.",
        "Run the same release on all tasks; if they do, report it with the message.";
    STALE: FailedPrecondition,
        "A reference names an earlier use of a slot; nothing was read or written.",
        "Nothing if it happened at a restart or an abort; otherwise report it with the message.";
    DATA_MISMATCH: DataLoss,
        "The bytes that came are not those that were sent.",
        "Suspect memory or network hardware; report it with the message.";
}
