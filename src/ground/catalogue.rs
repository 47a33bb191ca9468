//! The catalogue of reasons: every failure a user can meet, under a name that never changes.
//!
//! Knows nothing of how a failure comes about. A [`Status`](super::Status) carries one of these names beside its
//! code; programs may match on it and people may look it up here. Messages may be reworded, reasons may not, and
//! a reason that is no longer used stays in the table. The whole table is the documentation of [`ALL`].

use super::Code;

#[cfg(test)]
mod tests;

/// What the catalogue says of a reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The stable name.
    pub reason: &'static str,
    /// The code that usually goes with it, and that [`Status::of`](super::Status::of) gives it.
    pub code: Code,
    /// What happened.
    pub meaning: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

/// What the catalogue says of `reason`, if it stands there.
#[must_use]
pub fn find(reason: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.reason == reason)
}

macro_rules! catalogue {
    ($($reason:ident: $code:ident, $meaning:literal, $remedy:literal;)*) => {
        $(
            #[doc = concat!("`", stringify!($code), "`: ", $meaning)]
            ///
            #[doc = $remedy]
            pub const $reason: &str = stringify!($reason);
        )*

        /// Every reason.
        ///
        /// | reason | code | what happened | what to do |
        /// |---|---|---|---|
        $(#[doc = concat!(
            "| `", stringify!($reason), "` | ", stringify!($code), " | ", $meaning, " | ", $remedy, " |"
        )])*
        pub const ALL: &[Entry] = &[$(
            Entry { reason: $reason, code: Code::$code, meaning: $meaning, remedy: $remedy },
        )*];
    };
}

catalogue! {
    // ── Names ───────────────────────────────────────────────────────────────────────────────────────────────────
    KEY_MALFORMED: InvalidArgument,
        "The text is not a key: `source;incarnation;destination;edge;frame:iteration` with two full device names.",
        "Build keys with `Key::new` or `Key::between` instead of by hand.";
    DEVICE_MALFORMED: InvalidArgument,
        "The text is not a device name, or is a partial one where a full one is needed.",
        "Write `/job:<job>/replica:<n>/task:<n>/device:<TYPE>:<n>`.";
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
    // ── Steps and receives ──────────────────────────────────────────────────────────────────────────────────────
    STEP_ABORTED: Aborted,
        "The step was aborted; this is the first status it was given, or a consequence of it.",
        "Look for the root failure: the status of this step that is not derived.";
    STEP_FINISHED: Aborted,
        "The step is over and cleaned up; the request came too late.",
        "Start a new step. If this is a surprise, look for who finished the old one early.";
    STEP_ENDED: Aborted,
        "The step ended while a value was on its way to be parked.",
        "Nothing if the step was meant to end; otherwise as for STEP_FINISHED.";
    STEP_UNCLAIMED: Aborted,
        "Peers ran the step, but it was not used here in time.",
        "Start the step on every task that takes part in it.";
    RECV_CANCELLED: Cancelled,
        "The receive was cancelled before its value came.",
        "Nothing: whoever asked for it gave it up.";
    VALUE_DEAD: FailedPrecondition,
        "A dead value was read: its sender says that nothing will come.",
        "Look at `Received::is_dead` first, where a sender may send dead values.";
    SEND_CANCELLED: Cancelled,
        "A send was cancelled while it waited for room: its value was not taken.",
        "Nothing: whoever asked for it gave it up. The error holds the tensor.";
    DEADLINE: DeadlineExceeded,
        "The value did not come, or found no room, or its step had not ended, before the deadline.",
        "See who owes it in the list of pending keys; raise the deadline if the producer is just slow.";
    // ── Limits ──────────────────────────────────────────────────────────────────────────────────────────────────
    PARKED_BYTES: ResourceExhausted,
        "The values that wait for a receiver hold as many bytes as they may.",
        "Receive sooner, send later, or raise the limit named in the message.";
    PARKED_BYTES_OF_STEP: ResourceExhausted,
        "The values of one step that wait for a receiver hold as many bytes as they may.",
        "Receive sooner, send later, or raise the limit named in the message.";
    PARKED_VALUES: ResourceExhausted,
        "As many values wait for a receiver as may.",
        "Receive sooner, send later, or raise the limit named in the message.";
    WAITERS: ResourceExhausted,
        "As many receives wait as may.",
        "Ask for fewer values at once, or raise the limit named in the message.";
    WAITERS_OF_KEY: ResourceExhausted,
        "As many receives wait for one key as may.",
        "Ask for fewer values at once, or raise the limit named in the message.";
    KEYS: ResourceExhausted,
        "As many keys are in use as may be.",
        "Finish steps that are over, or raise the limit named in the message.";
    STEPS: ResourceExhausted,
        "As many steps are alive as may be.",
        "Finish steps that are over, or raise the limit named in the message.";
    GRACE_STEPS: ResourceExhausted,
        "Peers have begun as many steps that were not used here yet as they may.",
        "Start steps on all tasks at about the same time, or raise the limit named in the message.";
    ORDINALS: ResourceExhausted,
        "One key has carried as many values as it can in one step.",
        "Begin another step.";
    WAITING_SENDS: ResourceExhausted,
        "As many sends wait for room in the shard as may.",
        "Wait for some of them before sending more, or send on fewer threads.";
    SEND_BEHIND: ResourceExhausted,
        "Earlier values of the key wait for room: a send that does not wait may not overtake them.",
        "Wait for the earlier sends first, or send this value with `send_async` too.";
    MAILBOX_FULL: ResourceExhausted,
        "The shard takes commands more slowly than they are given.",
        "Give fewer at once, use more shards, or raise the limit named in the message.";
    LANDING_UNOPENED: ResourceExhausted,
        "The fabric registered no memory for a value that a peer offered, for as long as it was asked to.",
        "Raise the limit of locked memory, or have fewer large values under way at once.";
    ARENA_FULL: ResourceExhausted,
        "The arena has no room for the tensor and may not grow.",
        "Drop tensors that are no longer needed, or raise the arena's limit.";
    ARENA_UNFIT: ResourceExhausted,
        "The tensor does not fit an arena segment, however empty.",
        "Raise the segment size above the largest tensor.";
    LEASES_OUT: ResourceExhausted,
        "As many tensors are lent by peers as may be.",
        "Drop received tensors sooner, or raise the limit named in the message.";
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
        "The system gives no more descriptors or memory; the message names the call and its error number.",
        "Raise the limit on open files (`ulimit -n`, or LimitNOFILE in a unit), or give the machine more memory.";
    // ── RDMA ────────────────────────────────────────────────────────────────────────────────────────────────────
    VERBS_MISSING: FailedPrecondition,
        "RDMA was asked for, and libibverbs cannot be loaded.",
        "Install rdma-core: on Debian the packages libibverbs1 and ibverbs-providers. Or choose another transport.";
    VERBS_NO_DEVICE: NotFound,
        "There is no RDMA device, active port or address such as the settings ask for.",
        "See `ibv_devinfo` for what there is, `ip link` for a port that is down; correct device, port or GID index.";
    VERBS_CALL: Internal,
        "A verbs call failed; the message names it, its error number and the device.",
        "Look the error number up in the call's manual page; `ibv_devinfo -v` says what the device can do.";
    VERBS_SETTING: InvalidArgument,
        "An RDMA setting is out of its range, or beyond what the device can do.",
        "Correct the setting named in the message.";
    VERBS_ENDPOINT: FailedPrecondition,
        "What a peer says of its end of a queue pair cannot be.",
        "Run the same release on all tasks; if they do, report it with the message.";
    VERBS_LIMIT: ResourceExhausted,
        "An RDMA device, or the engine's queues on it, hold no more of something.",
        "Use fewer peers or shards for each device, or raise the limit named in the message.";
    VERBS_COMPLETION: Unavailable,
        "An RDMA operation ended with an error, and its queue pair with it.",
        "See what the message says of the status; the peer is reached again by a new connection if it is there.";
    // ── Peers ───────────────────────────────────────────────────────────────────────────────────────────────────
    PEER_LOST: Unavailable,
        "The peer is gone: its process died, or it could not be reached for too long.",
        "Start it again and repeat the step.";
    PEER_RESTARTED: Aborted,
        "The peer came back as another incarnation; what was meant for its predecessor fails.",
        "Repeat the step: its values must be made again.";
    PEER_VERSION: FailedPrecondition,
        "The peer speaks another version of the protocol.",
        "Run the same release on all tasks.";
    PEER_DUPLICATE_NAME: AlreadyExists,
        "Another live process has the same task name.",
        "Give each process its own task index, and stop what is left of an earlier run.";
    PEER_REFUSED: PermissionDenied,
        "The peer did not accept us, or we did not accept it.",
        "Give both sides the same cluster secret.";
    PEER_SELF: InvalidArgument,
        "The peer is this task itself.",
        "Take this task's own address off its list of peers.";
    PEER_PROTOCOL: Internal,
        "The peer broke the control protocol; its connection is closed.",
        "Run the same release on all tasks; if they do, report it with the message.";
    PEER_BUSY: ResourceExhausted,
        "The peer, or we, have as many connections or requests under way as may be.",
        "Try again later, or raise the limit named in the message.";
    GREETING_LATE: Unavailable,
        "A connection was made, and its greeting was not over in its time.",
        "It is tried again. Look whether one of both tasks has too little processor time, or is stopped.";
    PEER_UNKNOWN: NotFound,
        "No task of this name is in the cluster, or another task answers at its address.",
        "Compare names and addresses with the cluster's specification.";
    PUSH_ELSEWHERE: FailedPrecondition,
        "What is pushed is for another task, or another takes it already.",
        "Compare `--to` of the push with the task that pulls; one pull takes one push.";
    PUSH_LIMIT: ResourceExhausted,
        "As many pushes wait beside one task as may.",
        "Wait until some were taken, or stop those that nobody takes.";
    PEER_STATUS: Unknown,
        "A peer reported a failure; code and message are its own.",
        "Read the message, and the log of the peer it names.";
    CONNECT_DEADLINE: Unavailable,
        "The peer could not be reached in time.",
        "Check that it runs and that its address is right; raise the connect deadline if it starts slowly.";
    CONNECTION_REFUSED: Unavailable,
        "Nobody listens at the peer's address.",
        "Start the task, or correct its address.";
    PEER_OTHER_USER: PermissionDenied,
        "The peer runs as another user of this machine, or as one whom the kernel does not name; nothing was proved.",
        "Run both as the same user, give both the same cluster secret, or allow it with `foreign_users`.";
    CONTROL_ADDRESS: InvalidArgument,
        "An address of the control plane is not one, or cannot be used.",
        "Correct the address named in the message.";
    CONTROL_SYSTEM: Internal,
        "The operating system refused the control plane something; the message says what.",
        "Look the error number up in the call's manual page.";
    CONTROL_EXPOSED: PermissionDenied,
        "The control plane would be open to other machines with nothing to keep strangers out.",
        "Give all tasks one cluster secret or TLS certificates, listen on a loopback address, or allow `insecure`.";
    SECRET_UNFIT: InvalidArgument,
        "The file of the cluster secret cannot be used: it is missing, others may read it, or its secret is too short.",
        "Make one with `rendez secret new FILE`, and give it to all tasks.";
    SECRET_MISSING: PermissionDenied,
        "One of both sides has a cluster secret, and the other has none.",
        "Give the side that has none the secret's file, with `cluster_secret_file`.";
    SECRET_WRONG: PermissionDenied,
        "The peer did not prove that it knows this cluster's secret, or we did not to the peer.",
        "Give all tasks the same secret file; if they have it, somebody else is knocking.";
    HANDSHAKE_REPLAYED: PermissionDenied,
        "Somebody played back a recorded handshake. It was of no use to them.",
        "Look for who listens on the network between the tasks.";
    TLS_REFUSED: PermissionDenied,
        "TLS is set on one side only, or one side did not take the other's certificate.",
        "Give all tasks certificates of the same authority, or none.";
    TICKET_UNKNOWN: PermissionDenied,
        "A data connection came with a ticket that this task did not give out, or that its owner did not sign.",
        "Nothing if the peers connect; otherwise look for who else dials this port.";
    TICKET_EXPIRED: DeadlineExceeded,
        "A data connection came after its greeting was over.",
        "Nothing if the peers connect at a later try; otherwise raise the greeting's deadline.";
    TICKET_REUSED: PermissionDenied,
        "A data connection came with a ticket that had been used.",
        "Look for who listens on the network between the tasks.";
    PATH_REFUSED: FailedPrecondition,
        "The path that is demanded to a peer is not to be had; the message says why.",
        "Mend what the message names, or allow the path to be chosen.";
    CALL_UNKNOWN: Unimplemented,
        "The peer has no service of this number.",
        "Run the same release on all tasks, and register the service before the task starts.";
    CALL_MALFORMED: InvalidArgument,
        "The payload of a call is not what its service takes, or that of an answer not what it gives.",
        "Call with the messages of the same version of rendez.";
    CALL_BUSY: ResourceExhausted,
        "As many calls wait, here or at the peer, as may.",
        "Call again later, or wait for answers before calling on.";
    CALL_TOO_LONG: ResourceExhausted,
        "A call or its answer is longer than a control message may be.",
        "Send large values as tensors.";
    CALL_CANCELLED: Cancelled,
        "The call was given up before its answer came.",
        "Nothing: whoever made it gave it up.";
    CALL_DEADLINE: DeadlineExceeded,
        "The answer to a call did not come before its deadline.",
        "See whether the peer runs; raise the deadline if the service is just slow.";
    SERVICE_FAILED: Internal,
        "A service broke down while it carried out a call.",
        "See the log of the task that was called.";
    CONTROL_BUSY: ResourceExhausted,
        "As many commands wait for the control plane as may.",
        "Give fewer at once.";
    CONTROL_STOPPED: FailedPrecondition,
        "The control plane has stopped.",
        "Nothing if the engine was shut down; otherwise see the log for why.";
    LINK_CONFIG: InvalidArgument,
        "The measures of a link to a peer make no sense.",
        "Correct the setting named in the message.";
    LINK_OS: Internal,
        "The operating system refused a link to a peer something; the message says what.",
        "Look the error number up in the call's manual page.";
    // ── Bytes from outside ──────────────────────────────────────────────────────────────────────────────────────
    FRAME_MALFORMED: DataLoss,
        "A peer sent a frame that breaks the protocol; the channel is closed.",
        "Run the same release on all tasks; if they do, report it with the message.";
    RING_CORRUPT: DataLoss,
        "A ring in shared memory holds what no correct peer writes.",
        "Restart the peer; if it comes again, report it with the message.";
    DESCRIPTOR_UNSEALED: PermissionDenied,
        "A peer offered shared memory that it could still shrink or write elsewhere; it was not mapped.",
        "Run the same release on all tasks.";
    DESCRIPTOR_SHORT: InvalidArgument,
        "A peer offered shared memory of another length than it said; it was not mapped.",
        "Run the same release on all tasks.";
    LANDING_RANGE: OutOfRange,
        "A peer named bytes outside the memory it was given.",
        "Run the same release on all tasks; if they do, report it with the message.";
    REGION_OUTSIDE: OutOfRange,
        "A peer named bytes outside the memory it offered.",
        "Run the same release on all tasks; if they do, report it with the message.";
    STALE: FailedPrecondition,
        "A reference names an earlier use of a slot; nothing was read or written.",
        "Nothing if it came with a restart or an abort; otherwise report it with the message.";
    DATA_MISMATCH: DataLoss,
        "The bytes that came are not those that were sent.",
        "Suspect memory or network hardware; report it with the message.";
    // ── Tensors and files ───────────────────────────────────────────────────────────────────────────────────────
    TENSOR_SHAPE: InvalidArgument,
        "The shape is not one, or does not go with the bytes.",
        "Compare the dimensions with the number of elements.";
    TENSOR_DTYPE: InvalidArgument,
        "The tensor's elements have another type than was asked for.",
        "Ask for the type the tensor has.";
    TENSOR_ALIGNMENT: InvalidArgument,
        "The tensor's bytes do not lie as its elements' type needs.",
        "Copy them into a tensor of the engine's own.";
    TENSOR_STRINGS: InvalidArgument,
        "The bytes are not an encoding of strings.",
        "Make string tensors with the engine's own encoder.";
    SAFETENSORS_MALFORMED: InvalidArgument,
        "The file is not a safetensors file.",
        "Make the file again; it may have been cut short.";
    MODEL_INDEX_MALFORMED: InvalidArgument,
        "The index of a model in several files is none, names a file beyond its folder, or a tensor that is not there.",
        "Get the model again, with all its files; the message says what is wrong.";
    CHECKPOINT_UNFIT: FailedPrecondition,
        "A checkpoint is of something else than what is trained.",
        "Name the folder of this training; the message says what is missing or of another shape.";
    NPY_MALFORMED: InvalidArgument,
        "The file is no array in NumPy's format, or one of a kind that is not read.",
        "Save it again with `numpy.save`; the message says what is wrong.";
    FILE_UNREADABLE: NotFound,
        "The file could not be read.",
        "Check its path and permissions.";
    FILE_UNWRITABLE: FailedPrecondition,
        "The file could not be written.",
        "Name a file in a folder you may write to, with room on its disk.";
    FILES_REFUSED: PermissionDenied,
        "A graph was to touch a file, and `files_root` is not set, or the path does not lie below it.",
        "Set `files_root` of the task that runs the kernel to the folder, and name paths below it.";
    HDR_LOG_MALFORMED: InvalidArgument,
        "The file is not an interval log of histograms, or is cut off.",
        "Make it again with `rendez bench --hdr-log`, or with any tool that writes version 1.3 of the format.";
    RECORDING_MALFORMED: InvalidArgument,
        "The file is not a recording, or is damaged.",
        "Take a file that `rendez dump` or a task with `recorder_dir` has written.";
    RECORDING_VERSION: FailedPrecondition,
        "The recording was written by another version of rendez.",
        "Read it with the version that wrote it.";
    BENCH_ROWS_MALFORMED: InvalidArgument,
        "The file has no rows of measurements.",
        "Make it with `rendez bench --json > FILE`.";
    BENCH_REGRESSED: FailedPrecondition,
        "A measurement is worse than the one it is compared with, by more than is allowed.",
        "Measure again on a quiet machine; if it stays, look for what changed.";
    INTERRUPTED: Cancelled,
        "The command was interrupted before it was done.",
        "Nothing: what was done until then is printed.";
    METRICS_ADDRESS: FailedPrecondition,
        "The address for metrics cannot be listened at.",
        "Name a free port of this machine, or 0 for any.";
    // ── Clusters ────────────────────────────────────────────────────────────────────────────────────────────────
    CLUSTER_ADDRESS: InvalidArgument,
        "The text is not an address of a task.",
        "Write `host:port`, and an IPv6 address in brackets, as in `[::1]:2222`.";
    CLUSTER_DUPLICATE_JOB: InvalidArgument,
        "A cluster's specification has the same job twice.",
        "List all tasks of the job in one place.";
    CLUSTER_SPEC: InvalidArgument,
        "A cluster's specification makes no sense.",
        "Correct the job or task named in the message.";
    CLUSTER_TASK_UNDEFINED: Internal,
        "The task that this process should be is not in the cluster.",
        "Compare the task with the cluster; `rendez cluster show` prints both and where they come from.";
    CLUSTER_UNRESOLVED: NotFound,
        "Neither flags nor files nor a launcher say what the cluster is.",
        "Set RENDEZ_CLUSTER and RENDEZ_TASK, write a `[cluster]` into the configuration, or use a launcher.";
    CLUSTER_ROOT_UNKNOWN: FailedPrecondition,
        "The launcher says which rank this is, but not how to find the others.",
        "Set the variable that the message names, the same for all ranks.";
    CLUSTER_FILE_MALFORMED: InvalidArgument,
        "The `[cluster]` of a configuration file cannot be read.",
        "Correct the line named in the message; `rendez cluster show` tries it out.";
    TF_CONFIG_MALFORMED: InvalidArgument,
        "The variable TF_CONFIG is not what TensorFlow's would be.",
        "Correct the place named in the message, or unset the variable if it means something else.";
    LAUNCHER_ENVIRONMENT: InvalidArgument,
        "A launcher's environment variables make no sense, alone or together.",
        "Correct the variable named in the message, or unset it if no launcher set it.";
    HOST_LIST_MALFORMED: InvalidArgument,
        "The text is not a list of hosts or counts as Slurm writes them.",
        "Write hosts as `node[01-04,7],login`, and counts as `2(x3),1`.";
    HOST_LIST_TOO_LONG: ResourceExhausted,
        "A list of hosts stands for more hosts than a cluster may have.",
        "Correct the range if it is a mistake; otherwise make several clusters.";
    CLUSTER_INCOMPLETE: Unavailable,
        "Tasks that know only their root did not all meet there in time.",
        "Start the ranks that the message names, or raise `connect_timeout` if they start far apart.";
    PEER_NOT_OF_CLUSTER: PermissionDenied,
        "The task that knocks is not in the cluster.",
        "Add it to the cluster of every task; if it is nobody's, somebody has the secret who should not.";
    PEER_OTHER_EPOCH: FailedPrecondition,
        "The peer belongs to another run of the job, or to another restart of it.",
        "Wait until the launcher has ended what is left of it; this run goes on without it.";
    // ── Servers ─────────────────────────────────────────────────────────────────────────────────────────────────
    SERVER_STOPPED: FailedPrecondition,
        "The server does not run: it was never started, or it has stopped for good.",
        "Start it before it is used; make another after it has stopped.";
    PROTOCOL_UNKNOWN: NotFound,
        "No protocol has that name.",
        "Take one of those that the message lists.";
    PROTOCOL_REFUSED: FailedPrecondition,
        "The protocol is known and not to be had; the message says why.",
        "Take `auto`, or the path that the message names.";
    // ── Graphs ──────────────────────────────────────────────────────────────────────────────────────────────────
    GRAPH_MALFORMED: InvalidArgument,
        "The bytes are not a graph, or its nodes, inputs or names contradict each other.",
        "Export the graph again; the message names the node and the input.";
    GRAPH_VERSION: InvalidArgument,
        "The graph says that readers as old as this one may not read it.",
        "Export it with an older release, or upgrade.";
    GRAPH_LIMIT: ResourceExhausted,
        "The graph is larger than a graph may be.",
        "Split it; the message names the limit.";
    GRAPH_OP_UNKNOWN: NotFound,
        "A node wants an operation that has no kernel here.",
        "Replace the operation; the message names it and the node.";
    OP_EXISTS: AlreadyExists,
        "An operation was registered under a name that is taken.",
        "Name it differently; standard operations cannot be replaced.";
    OP_MALFORMED: InvalidArgument,
        "The definition of an operation of one's own makes no sense.",
        "Correct what the message names; the words are those of `graph::signature`.";
    GRAPH_FUNCTION: Unimplemented,
        "A node calls a function of the graph's library.",
        "Inline the functions before the graph is exported.";
    GRAPH_ATTR: InvalidArgument,
        "An attribute is missing, unknown, or has a value that is not allowed.",
        "Correct the attribute that the message names.";
    GRAPH_TYPE: InvalidArgument,
        "A tensor flows into an input of another type.",
        "Cast it, or correct the types of the node that the message names.";
    GRAPH_SHAPE: InvalidArgument,
        "The shapes of a node's inputs do not fit its operation.",
        "Correct the shapes that the message names.";
    GRAPH_CYCLE: InvalidArgument,
        "Nodes wait for each other, and not through a loop's NextIteration.",
        "Break the cycle; the message names nodes of it.";
    GRAPH_FRAME: InvalidArgument,
        "The frames of the graph's loops contradict each other.",
        "Build loops with a loop's own operations; the message names the node.";
    GRAPH_ENDPOINT: InvalidArgument,
        "What is fed, fetched or run makes no sense, alone or together.",
        "Correct the feed, fetch or target that the message names.";
    GRAPH_ENDPOINT_UNKNOWN: NotFound,
        "What is fed, fetched or run is not in the graph.",
        "Name a node of the graph, and an output with node:output.";
    GRAPH_PLACEMENT: InvalidArgument,
        "A node cannot stand on any device, alone or together with those it must be with.",
        "Allow soft placement, or name a device that the message lists.";
    GRAPH_DEVICE: Internal,
        "A node's assigned device is no full device name.",
        "Place the graph before it is cut.";
    GRAPH_NODE_EXISTS: InvalidArgument,
        "A graph was extended by a node that it has already.",
        "Send only new nodes.";
    GRAPH_GRADIENT: Unimplemented,
        "An operation on the way from a result to a variable has no gradient here.",
        "Replace it, or stop the gradient before it.";
    TENSOR_MALFORMED: InvalidArgument,
        "The message of a tensor has no type, shape or elements that fit each other.",
        "Export it again; the message says what contradicts what.";
    KERNEL_UNKNOWN: NotFound,
        "An operation has no kernel for a node's types or attributes.",
        "Replace the node that the message names, or cast its inputs.";
    KERNEL_INPUT: InvalidArgument,
        "A kernel cannot compute with these inputs: their shapes or values do not fit.",
        "Correct what flows into the node that the message names.";
    KERNEL_FAILED: Internal,
        "A kernel broke down, or gave other outputs than its node has.",
        "Report it with the message and the log; the step can be tried again.";
    RUN_ARGUMENTS: InvalidArgument,
        "A run was not given the arguments that its part of the graph takes.",
        "Give one value for each argument, of the type that the message names.";
    RUN_STUCK: Internal,
        "A run came to rest before all of its part of the graph had run.",
        "Report it with the graph; the message names a node that did not run.";
    RUNS: ResourceExhausted,
        "As many runs of graphs are under way as may.",
        "Wait for some of them before starting more.";
    CHECKPOINT_KEY: NotFound,
        "A checkpoint has no tensor of that name.",
        "Restore what was saved; the message names the tensor and the file.";
    VARIABLE_EMPTY: FailedPrecondition,
        "A variable was read before anything was assigned to it.",
        "Run its initialiser, or restore a checkpoint, first.";
    ASSERT_FAILED: InvalidArgument,
        "An assertion of the graph does not hold.",
        "Look at the values in the message.";
    // ── Sessions ────────────────────────────────────────────────────────────────────────────────────────────────
    LINE_BUSY: ResourceExhausted,
        "As many questions wait on one line between two tasks as may.",
        "Wait for some of them before asking more.";
    LINE_CLOSED: Aborted,
        "The line between two tasks was closed: the session that it served is over.",
        "Begin another session.";
    SESSION_NONE: FailedPrecondition,
        "The session has no graph yet.",
        "Call `create` before anything is run.";
    SESSION_EXISTS: InvalidArgument,
        "A session that has a graph was given one again.",
        "Add to it with `extend`, or begin another session.";
    SESSION_CLOSED: FailedPrecondition,
        "The session was closed.",
        "Begin another session.";
    SESSION_UNKNOWN: Aborted,
        "The master has no such session: it was closed, or the master has restarted since.",
        "Begin another session, and restore a checkpoint.";
    SESSION_VERSION: Aborted,
        "The session's graph was extended by somebody else meanwhile.",
        "Extend again, now that the version is known.";
    SESSION_IDLE: Cancelled,
        "The session was closed because nobody had used it for long.",
        "Begin another session, or raise the time after which sessions are closed.";
    SESSION_SETTING: InvalidArgument,
        "A setting of a session means nothing here, or contradicts another.",
        "Leave out the setting that the message names.";
    SESSION_LIMIT: ResourceExhausted,
        "A task has as many sessions, or a session as many graphs, steps or callables, as may be.",
        "Close or release those that are not used.";
    SESSION_HANDLE: InvalidArgument,
        "A session's name, or that of something it has, is none.",
        "Give what creating it gave.";
    WORKER_SESSION_UNKNOWN: Aborted,
        "The worker has no such session: it may have restarted.",
        "Begin another session, and restore a checkpoint.";
    WORKER_GRAPH_UNKNOWN: Aborted,
        "The worker has no such graph: it may have restarted.",
        "Begin another session, and restore a checkpoint.";
    WORKER_ABSENT: Unavailable,
        "A worker that the session needs did not answer in time.",
        "Start the workers that the message names, or leave them out by device filters.";
    TRACEPARENT_MALFORMED: InvalidArgument,
        "The text is not a W3C traceparent.",
        "Write `00-<32 hex digits>-<16 hex digits>-<2 hex digits>` in lower case, neither of the first two all zero.";
    STEP_DUPLICATE: Aborted,
        "The same part of the same step was asked for twice.",
        "Run the same release on all tasks; if they do, report it with the message.";
    STEP_DEADLINE: DeadlineExceeded,
        "The step was not over by its deadline.",
        "See who owes what with `rendez pending`; raise the deadline if the graph is just slow.";
    STEP_CANCELLED: Cancelled,
        "The step was cancelled before it was over.",
        "Nothing: whoever asked for it gave it up, or closed its session.";
    FETCH_DEAD: InvalidArgument,
        "What was fetched is dead: the side of a condition that was not taken.",
        "Fetch what both sides of the condition merge into.";
    FEED_UNFIT: InvalidArgument,
        "A fed tensor has not the type or shape of what it stands for.",
        "Feed what the message names.";
    PARTIAL_RUN: InvalidArgument,
        "A partial run was fed or asked for what its setup does not have, or has had already.",
        "Name every feed and fetch in the setup, and each once in its runs.";
    PARTIAL_RUN_NONE: InvalidArgument,
        "There is no such partial run: it was never set up, or is over.",
        "Set it up first.";
    CALLABLE_UNKNOWN: InvalidArgument,
        "The session has no such callable.",
        "Make it first, and do not run what was released.";
    // ── Units ───────────────────────────────────────────────────────────────────────────────────────────────────
    SIZE_MALFORMED: InvalidArgument,
        "The text is not a size.",
        "Write bytes as in 4, 64KiB, 16MiB or 1g.";
    SIZE_OUT_OF_RANGE: OutOfRange,
        "The size is smaller or larger than may be.",
        "Stay within the range that the message names.";
    SIZE_RANGE: InvalidArgument,
        "The text is not a range of sizes.",
        "Write from:to:xFactor, as in 8:64MiB:x4.";
    DURATION_MALFORMED: InvalidArgument,
        "The text is not a duration.",
        "Write it with its unit, as in 50ms, 2s or 1.5m.";
    DURATION_OUT_OF_RANGE: OutOfRange,
        "The duration is shorter or longer than may be.",
        "Stay within the range that the message names.";
    RATE_MALFORMED: InvalidArgument,
        "The text is not a rate.",
        "Write operations a second, as in 1e6, 100k or 2.5M.";
    RATE_OUT_OF_RANGE: OutOfRange,
        "The rate is smaller or larger than may be.",
        "Stay within the range that the message names.";
    // ── Settings and life ───────────────────────────────────────────────────────────────────────────────────────
    SHARDS_OVER_CORES: InvalidArgument,
        "More shards were asked for than there are cores they may run on.",
        "Ask for fewer shards, or allow the process more cores.";
    CONFIG: InvalidArgument,
        "A setting is missing or makes no sense.",
        "Correct the setting named in the message.";
    ENGINE_FORKED: FailedPrecondition,
        "This process is a fork of one that had started an engine: none of its threads are here.",
        "Fork first and start engines then, or start another program (exec) in the child.";
    WAIT_IN_SHARD: FailedPrecondition,
        "A shard's own thread was asked to wait: what it waits for could not happen meanwhile.",
        "In an in-shard task use the task's context, or wait on a thread of your own.";
    TASK_PANICKED: Internal,
        "A task inside a shard panicked: it has ended, and its receives with it.",
        "Mend the task; the panic and its place stand on standard error.";
    SHARD_PANICKED: Internal,
        "A shard panicked: its engine has ended, with all that waited in it.",
        "Start the task again, and report the panic that stands on standard error.";
    SHUTDOWN: Aborted,
        "This process is shutting down.",
        "Nothing: it was told to.";
}
