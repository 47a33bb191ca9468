//! Files: what can go wrong with tensors, files, units and settings, and with the life of a process.

catalogue! {
    /// Every reason of tensors, files, units, settings and the life of a process.
    OF_FILES;
    // ── Tensors and files ──────────────────────────────────────────────────────────────────────────────────────────
    TENSOR_SHAPE: InvalidArgument,
        "The shape is not one, or does not go with the bytes.",
        "Compare the dimensions with the number of elements.";
    TENSOR_DTYPE: InvalidArgument,
        "The tensor's elements have another type than was asked for.",
        "Ask for the type the tensor has.";
    TENSOR_ALIGNMENT: InvalidArgument,
        "The tensor's bytes do not lie as its elements' type needs.",
        "Copy them into a tensor of the engine's own.";
    TENSOR_DEVICE: InvalidArgument,
        "The tensor's bytes lie in a device's memory, and would have to be read by the host, or sent to another task.",
        "Copy them into a host tensor first.";
    DEVICE_MISSING: FailedPrecondition,
        "Device memory was asked for, and this machine has no driver or no device, or the engine was started without.",
        "Set `devices`; `rendez doctor` says what was looked for, and what is missing.";
    DEVICE_ORDINAL: InvalidArgument,
        "There is no device of that number in this process.",
        "Name one that this process sees; a container or the driver's own variables may hide devices or renumber them.";
    DEVICE_CONTEXT: InvalidArgument,
        "A stream or memory is of a context that is not the primary one of any device.",
        "Make it in the device's primary context, as the device's runtime libraries do.";
    DEVICE_POINTER: InvalidArgument,
        "The address is not device memory: it was freed, or belongs to the host or to another process.",
        "Keep the memory until what was lent is given back; the message has the address.";
    DEVICE_EVENT: InvalidArgument,
        "A peer says that its bytes are there after an event that was never recorded.",
        "Bring both tasks to one version; the peer's memory of events does not say what it must.";
    DEVICE_OTHER: InvalidArgument,
        "Memory, a stream or a descriptor is of another device than it must be.",
        "Use a stream of the device that the memory lies on.";
    DEVICE_UNSEEN: FailedPrecondition,
        "A peer's memory is of a device that this process does not see.",
        "Let both processes see the device: containers and the driver's own variables hide some.";
    DEVICE_ARGUMENT: InvalidArgument,
        "The device's driver refused what it was given: a wrong handle, stream or length.",
        "The message names the call; check that the memory or the stream is still there.";
    DEVICE_FULL: ResourceExhausted,
        "The device's memory, or what may be pinned of the host's, is full.",
        "Let tensors go, lower the bound in the message, or raise `ulimit -l` or the control group's `memory.max`.";
    DEVICE_UNSUPPORTED: FailedPrecondition,
        "The device or its driver cannot do this.",
        "`rendez doctor` says what it can; a newer driver may do it.";
    DEVICE_LOST: Unavailable,
        "The device or its context failed, or the process whose device was to write the bytes is gone.",
        "Send the value again from a process that lives; a context that failed takes its process with it.";
    DEVICE_CALL: Internal,
        "A call of the device's driver failed.",
        "Look the code up in the driver's manual; the message names the call.";
    TENSOR_PAGES: FailedPrecondition,
        "The tensor's bytes do not own whole pages of memory that this process can map privately.",
        "Copy them; or let the sender make the tensor in pages of its own, and the receiver read it in place.";
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
        "The file has no rows of measurements, or none that may be compared with what is measured.",
        "Make it with `rendez bench --json > FILE`, and the options that are compared.";
    BENCH_REGRESSED: FailedPrecondition,
        "A measurement is worse than the one it is compared with, by more than is allowed.",
        "Measure again on a quiet machine; if it stays, look for what changed.";
    INTERRUPTED: Cancelled,
        "The command was interrupted before it was done.",
        "Nothing: what was done until then is printed.";
    METRICS_ADDRESS: FailedPrecondition,
        "The address for metrics cannot be listened at.",
        "Name a free port of this machine, or 0 for any.";
    // ── Units ──────────────────────────────────────────────────────────────────────────────────────────────────────
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
    // ── Settings and life ──────────────────────────────────────────────────────────────────────────────────────────
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
    C_ARGUMENT: InvalidArgument,
        "A C program passed a null pointer, or a number or a text that names nothing.",
        "Pass what the header says; the message names the argument.";
    C_PANICKED: Internal,
        "The library panicked while it did what a C program asked for.",
        "Report the panic that stands on standard error.";
    PYTHON_ARGUMENT: InvalidArgument,
        "A Python program passed what cannot be sent, received into, or understood.",
        "Pass what the message says.";
    PYTHON_SPENT: FailedPrecondition,
        "A Python program used a tensor that it had sent or released.",
        "Make another, or release it later; to send one value twice, receive or `copy` it first.";
    PYTHON_VIEWS: FailedPrecondition,
        "A Python program sent a tensor through whose views it could still be written.",
        "Delete the views, as NumPy arrays over it, before it is sent.";
    PYTHON_PENDING: FailedPrecondition,
        "A Python program asked an operation that has not ended for its result.",
        "Await it or call `wait`; `done` says whether it has ended.";
    CHECKPOINT_UNKNOWN: NotFound,
        "A task that was asked for a checkpoint holds none of that name, or none yet.",
        "Check the name and the task; the message says what it holds.";
    CHECKPOINT_MALFORMED: DataLoss,
        "What a task said of a checkpoint, or sent of it, does not fit together.",
        "Use the same release at both ends; save the checkpoint again.";
    CHECKPOINT_PICKLE: PermissionDenied,
        "A checkpoint has an object that only pickle can read, and pickle is not allowed between these tasks.",
        "Give the reader allow_pickle=True if the task may run code here, or share the cluster's secret.";
    CHECKPOINT_UNSUPPORTED: Unimplemented,
        "A checkpoint was saved in a way that cannot be held or handed over.",
        "The message says which part, and what works instead.";
    SHUTDOWN: Aborted,
        "This process is shutting down.",
        "Nothing: it was told to.";
}
