//! Files: what can go wrong with tensors, files, units and settings, and with the life of a process.

catalogue! {
    /// Every reason of tensors, files, units, settings and the life of a process.
    OF_FILES;
    // ── Tensors and files ──────────────────────────────────────────────────────────────────────────────────────────
    TENSOR_SHAPE: InvalidArgument,
        "The shape is malformed, or does not match the bytes.",
        "Compare the dimensions with the number of elements.";
    TENSOR_DTYPE: InvalidArgument,
        "The tensor's elements have a type other than the one that was asked for.",
        "Ask for the type the tensor has.";
    TENSOR_ALIGNMENT: InvalidArgument,
        "The tensor's bytes are not aligned as the type of its elements requires.",
        "Copy them into a tensor that the engine makes.";
    TENSOR_DEVICE: InvalidArgument,
        "The tensor's bytes lie in a device's memory, and would have to be read by the host, or sent to another task.",
        "Copy them into a host tensor first.";
    DEVICE_MISSING: FailedPrecondition,
        "Device memory was asked for, but this machine has no driver or device, or the engine was started without it.",
        "Set `devices`; `rendez doctor` says what was looked for, and what is missing.";
    DEVICE_ORDINAL: InvalidArgument,
        "There is no device of that number in this process.",
        "Name one that this process sees; a container or the driver's own variables may hide devices or renumber them.";
    DEVICE_CONTEXT: InvalidArgument,
        "A stream or memory belongs to a context that is not the primary one of any device.",
        "Make it in the device's primary context, as the device's runtime libraries do.";
    DEVICE_POINTER: InvalidArgument,
        "The address is not device memory: it was freed, or belongs to the host or to another process.",
        "Keep the memory until what was lent is given back; the message has the address.";
    DEVICE_EVENT: InvalidArgument,
        "A peer says that its bytes are there after an event that was never recorded.",
        "Run the same version on both tasks; what the peer's memory says about events is invalid.";
    DEVICE_OTHER: InvalidArgument,
        "Memory, a stream or a descriptor belongs to a device other than the one it must belong to.",
        "Use a stream of the device that the memory lies on.";
    DEVICE_UNSEEN: FailedPrecondition,
        "A peer's memory lies on a device that this process does not see.",
        "Let both processes see the device: containers and the driver's own variables hide some.";
    DEVICE_ARGUMENT: InvalidArgument,
        "The device's driver refused what it was given: a wrong handle, stream or length.",
        "The message names the call; check that the memory or the stream is still there.";
    DEVICE_FULL: ResourceExhausted,
        "The device's memory is full, or no more memory of the host may be pinned.",
        "Release tensors, lower the bound in the message, or raise `ulimit -l` or the control group's `memory.max`.";
    DEVICE_UNSUPPORTED: FailedPrecondition,
        "The device or its driver cannot do this.",
        "`rendez doctor` says what it can; a newer driver may do it.";
    DEVICE_LOST: Unavailable,
        "The device or its context failed, or the process whose device was to write the bytes is gone.",
        "Send the value again from a live process; a process whose context failed cannot use the device any more.";
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
        "The index of a model is malformed, or names a file outside its folder or a tensor that is not there.",
        "Get the model again, with all its files; the message says what is wrong.";
    CHECKPOINT_UNFIT: FailedPrecondition,
        "A checkpoint does not belong to what is being trained.",
        "Name the folder of this training; the message says what is missing or of another shape.";
    NPY_MALFORMED: InvalidArgument,
        "The file is not an array in NumPy's format, or is of a kind that rendez does not read.",
        "Save it again with `numpy.save`; the message says what is wrong.";
    FILE_UNREADABLE: NotFound,
        "The file could not be read.",
        "Check its path and permissions.";
    FILE_UNWRITABLE: FailedPrecondition,
        "The file could not be written.",
        "Name a file in a folder you may write to, with room on its disk.";
    FILES_REFUSED: PermissionDenied,
        "A graph tried to use a file, but `files_root` is not set, or the path does not lie below it.",
        "Set `files_root` of the task that runs the kernel to the folder, and name paths below it.";
    HDR_LOG_MALFORMED: InvalidArgument,
        "The file is not an interval log of histograms, or is cut off.",
        "Make it again with `rendez bench --hdr-log`, or with any tool that writes version 1.3 of the format.";
    RECORDING_MALFORMED: InvalidArgument,
        "The file is not a recording, or is damaged.",
        "Use a file that `rendez dump` or a task with `recorder_dir` has written.";
    RECORDING_VERSION: FailedPrecondition,
        "The recording was written by another version of rendez.",
        "Read it with the version that wrote it.";
    BENCH_ROWS_MALFORMED: InvalidArgument,
        "The file has no rows of measurements, or none that may be compared with what is measured.",
        "Make it with `rendez bench --json > FILE`, and with the same options as this run.";
    BENCH_REGRESSED: FailedPrecondition,
        "A measurement is worse than the one it is compared with, by more than is allowed.",
        "Measure again on a quiet machine; if the result stays the same, look for what changed.";
    INTERRUPTED: Cancelled,
        "The command was interrupted before it was done.",
        "Nothing: what was done until then is printed.";
    METRICS_ADDRESS: FailedPrecondition,
        "The task cannot listen at the address for metrics.",
        "Name a free port of this machine, or 0 for any.";
    // ── Units ──────────────────────────────────────────────────────────────────────────────────────────────────────
    SIZE_MALFORMED: InvalidArgument,
        "The text is not a size.",
        "Write bytes as in 4, 64KiB, 16MiB or 1g.";
    SIZE_OUT_OF_RANGE: OutOfRange,
        "The size is smaller or larger than is allowed.",
        "Stay within the range that the message names.";
    SIZE_RANGE: InvalidArgument,
        "The text is not a range of sizes.",
        "Write from:to:xFactor, as in 8:64MiB:x4.";
    DURATION_MALFORMED: InvalidArgument,
        "The text is not a duration.",
        "Write it with its unit, as in 50ms, 2s or 1.5m.";
    DURATION_OUT_OF_RANGE: OutOfRange,
        "The duration is shorter or longer than is allowed.",
        "Stay within the range that the message names.";
    RATE_MALFORMED: InvalidArgument,
        "The text is not a rate.",
        "Write operations a second, as in 1e6, 100k or 2.5M.";
    RATE_OUT_OF_RANGE: OutOfRange,
        "The rate is smaller or larger than is allowed.",
        "Stay within the range that the message names.";
    // ── Settings and life ──────────────────────────────────────────────────────────────────────────────────────────
    SHARDS_OVER_CORES: InvalidArgument,
        "More shards were asked for than there are cores they may run on.",
        "Ask for fewer shards, or allow the process more cores.";
    CONFIG: InvalidArgument,
        "A setting is missing or makes no sense.",
        "Correct the setting named in the message.";
    ENGINE_FORKED: FailedPrecondition,
        "This process was forked from one that had started an engine: the engine's threads are not here.",
        "Fork before you start engines, or start another program (exec) in the child.";
    WAIT_IN_SHARD: FailedPrecondition,
        "A shard's own thread was asked to wait: what it waits for could not happen meanwhile.",
        "In an in-shard task use the task's context, or wait on a thread of your own.";
    TASK_PANICKED: Internal,
        "A task inside a shard panicked: it has ended, and its receives with it.",
        "Fix the task; standard error shows the panic and where it happened.";
    SHARD_PANICKED: Internal,
        "A shard panicked: its engine has ended, with all that waited in it.",
        "Start the task again, and report the panic that standard error shows.";
    C_ARGUMENT: InvalidArgument,
        "A C program passed a null pointer, or a number or a text that names nothing.",
        "Pass what the header says; the message names the argument.";
    C_PANICKED: Internal,
        "The library panicked while it did what a C program asked for.",
        "Report the panic that standard error shows.";
    PYTHON_ARGUMENT: InvalidArgument,
        "A Python program passed what cannot be sent, received into, or understood.",
        "Pass what the message says.";
    PYTHON_SPENT: FailedPrecondition,
        "A Python program used a tensor that it had sent or released.",
        "Make another, or release it later; to send one value twice, receive or `copy` it first.";
    PYTHON_VIEWS: FailedPrecondition,
        "A Python program sent a tensor that could still be written through its views.",
        "Delete the views, such as NumPy arrays over it, before you send it.";
    PYTHON_PENDING: FailedPrecondition,
        "A Python program asked for the result of an operation that has not ended.",
        "Await it or call `wait`; `done` says whether it has ended.";
    CHECKPOINT_UNKNOWN: NotFound,
        "A task that was asked for a checkpoint holds none of that name, or none yet.",
        "Check the name and the task; the message says what it holds.";
    CHECKPOINT_MALFORMED: DataLoss,
        "What a task said about a checkpoint, or sent of it, is inconsistent.",
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
