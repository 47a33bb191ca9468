//! Peers: what can go wrong between tasks, and with their cluster.

catalogue! {
    /// Every reason of peers, clusters and servers.
    OF_PEERS;
    // ── Peers ──────────────────────────────────────────────────────────────────────────────────────────────────────
    PEER_LOST: Unavailable,
        "The peer is gone: its process died, or it could not be reached for too long.",
        "Start it again and repeat the step.";
    PEER_RESTARTED: Aborted,
        "The peer came back as another incarnation; what was meant for its predecessor fails.",
        "Repeat the step: its values must be made again. A session is over with its worker: begin another, and \
         restore a checkpoint.";
    PEER_VERSION: FailedPrecondition,
        "The peer speaks another version of the protocol.",
        "Run the same release on all tasks.";
    PEER_DUPLICATE_NAME: AlreadyExists,
        "Another live process has the same task name, or something listens at the task's address already.",
        "Give each process a task index of its own, and stop what is left of an earlier run; `ss -ltnp` shows it. Two \
         jobs on one machine whose launcher names no port need a `port` (RENDEZ_PORT) each.";
    PEER_REFUSED: PermissionDenied,
        "The peer did not accept us, or we did not accept it.",
        "Give both sides the same cluster secret.";
    PEER_SELF: InvalidArgument,
        "The peer is this task itself.",
        "Remove this task's own address from its list of peers.";
    PEER_PROTOCOL: Internal,
        "The peer broke the control protocol; its connection is closed.",
        "Run the same release on all tasks; if they do, report it with the message.";
    PEER_BUSY: ResourceExhausted,
        "The peer, or this task, already has the maximum number of connections or requests under way.",
        "Try again later, or raise the limit named in the message.";
    GREETING_LATE: Unavailable,
        "A connection was made, but its greeting did not finish in time.",
        "It is tried again. Check whether one side has too little processor time, is stopped, or is not rendez.";
    PEER_UNKNOWN: NotFound,
        "No task of this name is in the cluster, or another task answers at its address.",
        "Compare names and addresses with the cluster's specification.";
    PUSH_ELSEWHERE: FailedPrecondition,
        "The push is meant for another task, or another pull is already taking it.",
        "Compare `--to` of the push with the task that pulls; one pull takes one push.";
    PUSH_LIMIT: ResourceExhausted,
        "The maximum number of pushes already waits beside one task.",
        "Wait until some have been taken, or stop sending what is never received.";
    PEER_STATUS: Unknown,
        "A peer reported a failure; the code and the message are the peer's.",
        "Read the message, and the log of the peer it names.";
    CONNECT_DEADLINE: Unavailable,
        "The peer could not be reached in time.",
        "Check that it runs and that its address is right, and raise `connect_timeout` if it starts slowly. If this \
         task does not know the peer's address, find out on the peer why it does not connect.";
    CONNECTION_REFUSED: Unavailable,
        "No process listens at the peer's address.",
        "Start the task, or correct its address.";
    PEER_OTHER_USER: PermissionDenied,
        "The peer runs as another user of this machine, or as one that the kernel does not name, and proved no secret.",
        "Run both as the same user, or give both the same cluster secret. In a user namespace (a container with one) \
         all users without a number there are shown as one, usually 65534, which is never trusted: tasks that \
         run as that one need a secret.";
    CONTROL_ADDRESS: InvalidArgument,
        "An address of the control plane is malformed, or cannot be used.",
        "Correct the address named in the message.";
    CONTROL_SYSTEM: Internal,
        "The operating system refused a request of the control plane; the message says which.",
        "Look the error number up in the call's manual page.";
    CONTROL_EXPOSED: PermissionDenied,
        "The control plane would be open to other machines with nothing to keep strangers out.",
        "Give all tasks one cluster secret or TLS certificates, listen on a loopback address, or allow `insecure`.";
    SECRET_UNFIT: InvalidArgument,
        "The file of the cluster secret cannot be used: it is missing, others may read it, or its secret is too short.",
        "Make one with `rendez secret new FILE`, and give it to all tasks.";
    SECRET_MISSING: PermissionDenied,
        "One side has a cluster secret, and the other has none.",
        "Set `cluster_secret_file` on the side that has none.";
    SECRET_WRONG: PermissionDenied,
        "The peer did not prove that it knows this cluster's secret, or this task did not prove it to the peer.",
        "Give all tasks the same secret file and release; if they have it, a stranger is trying to connect, or, over a \
         Unix socket, namespaces hide from the task that is dialled both the process and the user of the dialler.";
    HANDSHAKE_REPLAYED: PermissionDenied,
        "A recorded handshake was played back, and was refused.",
        "Look for who listens on the network between the tasks.";
    TLS_REFUSED: PermissionDenied,
        "Only one side uses TLS, or one side rejected the other's certificate.",
        "Give all tasks certificates of the same authority, or none.";
    TICKET_UNKNOWN: PermissionDenied,
        "A data connection came with a ticket that this task did not give out, or that its owner did not sign.",
        "Nothing if the peers connect; otherwise find out who else dials this port.";
    TICKET_EXPIRED: DeadlineExceeded,
        "A data connection came after its greeting was over.",
        "Nothing if the peers connect at a later attempt; otherwise raise the greeting's deadline.";
    TICKET_REUSED: PermissionDenied,
        "A data connection came with a ticket that had been used.",
        "Look for who listens on the network between the tasks.";
    PATH_REFUSED: FailedPrecondition,
        "The path that is required to a peer is unavailable; the message says why.",
        "Fix what the message names, or do not require a path.";
    CALL_UNKNOWN: Unimplemented,
        "The peer has no service of this number.",
        "Run the same release on all tasks, and register the service before the task starts.";
    CALL_MALFORMED: InvalidArgument,
        "The payload of a call is not what its service takes, or the payload of an answer is not what it returns.",
        "Call with the messages of the same version of rendez.";
    CALL_BUSY: ResourceExhausted,
        "The maximum number of calls is already waiting, here or at the peer.",
        "Call again later, or wait for answers before making more calls.";
    CALL_TOO_LONG: ResourceExhausted,
        "A call or its answer is longer than a control message may be.",
        "Send large values as tensors.";
    CALL_CANCELLED: Cancelled,
        "The call was given up before its answer came.",
        "Nothing: the caller cancelled it.";
    CALL_DEADLINE: DeadlineExceeded,
        "The answer to a call did not come before its deadline.",
        "See whether the peer runs; raise the deadline if the service is just slow.";
    SERVICE_FAILED: Internal,
        "A service broke down while it carried out a call.",
        "See the log of the task that was called.";
    CONTROL_BUSY: ResourceExhausted,
        "The maximum number of commands is already waiting for the control plane.",
        "Give fewer commands at once.";
    CONTROL_STOPPED: FailedPrecondition,
        "The control plane has stopped.",
        "Nothing if the engine was shut down; otherwise see the log for why.";
    LINK_CONFIG: InvalidArgument,
        "The measures of a link to a peer make no sense.",
        "Correct the setting named in the message.";
    LINK_OS: Internal,
        "The operating system refused a request for a link to a peer; the message says which.",
        "Look the error number up in the call's manual page.";
    // ── Clusters ───────────────────────────────────────────────────────────────────────────────────────────────────
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
        "The variable TF_CONFIG is not in the format that TensorFlow uses.",
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
        "The task that tries to connect is not in the cluster.",
        "Add it to the cluster of every task; if it is not one of your tasks, a stranger has the secret.";
    PEER_OTHER_EPOCH: FailedPrecondition,
        "The peer belongs to another run of the job, or to another restart of it.",
        "Wait until the launcher has ended what is left of it; this run goes on without it.";
    // ── Servers ────────────────────────────────────────────────────────────────────────────────────────────────────
    SERVER_STOPPED: FailedPrecondition,
        "The server does not run: it was never started, or it has stopped for good.",
        "Start it before it is used; make another after it has stopped.";
    PROTOCOL_UNKNOWN: NotFound,
        "No protocol has that name.",
        "Use one of those that the message lists.";
    PROTOCOL_REFUSED: FailedPrecondition,
        "The protocol is known but unavailable; the message says why.",
        "Use `auto`, or the path that the message names.";
}
