//! Graphs: what can go wrong with graphs, and with the sessions that run them.

catalogue! {
    /// Every reason of graphs and sessions.
    OF_GRAPHS;
    // ── Graphs ─────────────────────────────────────────────────────────────────────────────────────────────────────
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
        "A node needs an operation that has no kernel here.",
        "Replace the operation that the message names, or register one of your own with `Operations`.";
    OP_EXISTS: AlreadyExists,
        "An operation was registered under a name that is taken.",
        "Name it differently; standard operations cannot be replaced.";
    OP_MALFORMED: InvalidArgument,
        "The definition of a custom operation makes no sense.",
        "Correct what the message names; `graph::signature` explains its terms.";
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
        "Break the cycle; the message names some of its nodes.";
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
        "A node cannot be placed on any device, alone or together with the nodes that must share its device.",
        "Allow soft placement, or name a device that the message lists.";
    GRAPH_DEVICE: Internal,
        "The device that a node is assigned to is not a full device name.",
        "Place the graph before it is cut.";
    GRAPH_NODE_EXISTS: InvalidArgument,
        "A graph was extended with a node that it already has.",
        "Send only new nodes.";
    GRAPH_GRADIENT: Unimplemented,
        "An operation on the way from a result to a variable has no gradient here.",
        "Replace it, stop the gradient before it, or, if it is your own, give it one with `Definition::gradient`.";
    TENSOR_MALFORMED: InvalidArgument,
        "The type, shape and elements in a tensor's message do not fit each other.",
        "Export it again; the message says what contradicts what.";
    KERNEL_UNKNOWN: NotFound,
        "An operation has no kernel for a node's types or attributes.",
        "Replace the node that the message names, or cast its inputs.";
    KERNEL_INPUT: InvalidArgument,
        "A kernel cannot compute with these inputs: their shapes or values do not fit.",
        "Correct what flows into the node that the message names.";
    KERNEL_FAILED: Internal,
        "A kernel failed, or returned outputs other than those of its node.",
        "Report it with the message and the log; the step can be tried again.";
    RUN_ARGUMENTS: InvalidArgument,
        "A run was not given the arguments that its part of the graph takes.",
        "Give one value for each argument, of the type that the message names.";
    RUN_STUCK: Internal,
        "A run stopped before all of its part of the graph had run.",
        "Report it with the graph; the message names a node that did not run.";
    RUNS: ResourceExhausted,
        "The maximum number of runs of graphs is already under way.",
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
    // ── Sessions ───────────────────────────────────────────────────────────────────────────────────────────────────
    LINE_BUSY: ResourceExhausted,
        "The maximum number of questions already waits on one line between two tasks.",
        "Wait for some of them before asking more.";
    LINE_CLOSED: Aborted,
        "The line between two tasks was closed: the session that it served is over.",
        "Begin another session.";
    SESSION_NONE: FailedPrecondition,
        "The session has no graph yet.",
        "Call `create` before anything is run.";
    SESSION_EXISTS: InvalidArgument,
        "A session that already has a graph was given another one.",
        "Add to it with `extend`, or begin another session.";
    SESSION_CLOSED: FailedPrecondition,
        "The session was closed.",
        "Begin another session.";
    SESSION_UNKNOWN: Aborted,
        "The master has no such session: it was closed, or the master has restarted or been lost since.",
        "Begin another session, and restore a checkpoint.";
    SESSION_VERSION: Aborted,
        "Another client has extended the session's graph in the meantime.",
        "Extend again, now that the version is known.";
    SESSION_SETTING: InvalidArgument,
        "A setting of a session means nothing here, or contradicts another.",
        "Leave out the setting that the message names.";
    SESSION_LIMIT: ResourceExhausted,
        "A task has the maximum number of sessions, or a session the maximum number of graphs, steps or callables.",
        "Close or release those that are not used.";
    SESSION_HANDLE: InvalidArgument,
        "The handle of a session, or of something in it, is not valid.",
        "Pass the handle that creating it returned.";
    WORKER_SESSION_UNKNOWN: Aborted,
        "The worker has no such session: it has restarted, or had lost the master. The session is over.",
        "Begin another session, and restore a checkpoint.";
    WORKER_GRAPH_UNKNOWN: Aborted,
        "The worker has no such graph: it may have restarted.",
        "Begin another session, and restore a checkpoint.";
    WORKER_ABSENT: Unavailable,
        "A worker of the cluster did not answer in time. A session uses all of them unless told which to use.",
        "Start the workers that the message names, or leave them out: `device_filters` of the session's `ConfigProto`.";
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
        "Nothing: the caller cancelled it, or closed its session.";
    FETCH_DEAD: InvalidArgument,
        "What was fetched is dead: the side of a condition that was not taken.",
        "Fetch what both sides of the condition merge into.";
    FEED_UNFIT: InvalidArgument,
        "A fed tensor does not have the type or shape of what it replaces.",
        "Feed what the message names.";
    PARTIAL_RUN: InvalidArgument,
        "A partial run was fed or asked for something that its setup does not have, or that it has already had.",
        "Name every feed and fetch in the setup, and each once in its runs.";
    PARTIAL_RUN_NONE: InvalidArgument,
        "There is no such partial run: it was never set up, or is over.",
        "Set it up first.";
    CALLABLE_UNKNOWN: InvalidArgument,
        "The session has no such callable.",
        "Make it first, and do not run a callable that was released.";
}
