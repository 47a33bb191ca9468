//! Autograd: what can go wrong with eager tensors, contexts, backward passes and optimizers.

catalogue! {
    /// Every reason of autograd.
    OF_AUTOGRAD;
    // ── Autograd ─────────────────────────────────────────────────────────────────────────────────────────────────────
    AUTOGRAD_IDS: ResourceExhausted,
        "A worker has used all its ids of contexts or messages.",
        "Start the worker again.";
    AUTOGRAD_CONTEXT_UNKNOWN: NotFound,
        "There is no such context here: it never existed, or was released.",
        "Make calls and backward passes while their context lives.";
    AUTOGRAD_CONTEXT_FOREIGN: FailedPrecondition,
        "A worker was asked to release a context that it did not create.",
        "Release it where it was created.";
    AUTOGRAD_CONTEXT_RELEASED: Aborted,
        "A context was released while a backward pass went through it.",
        "Release it when its passes are over.";
    AUTOGRAD_CONTEXT_NESTED: FailedPrecondition,
        "A thread that is in a context entered another one.",
        "Leave the first, or ask for a nested one.";
    AUTOGRAD_WORKER_DEAD: Unavailable,
        "A worker that a context or a backward pass needs is dead, or has started again since.",
        "Begin another context with the workers that are left.";
    AUTOGRAD_JOINING: FailedPrecondition,
        "Autograd was used before its agent had begun, or with an agent that was not begun with it.",
        "Begin each agent with the options of a `Joining` of its own, attach that, and use what you get then.";
    AUTOGRAD_MESSAGE: InvalidArgument,
        "A worker sent an invalid autograd message.",
        "Run the same release on all workers; if they do, report it with the message.";
    AUTOGRAD_ROOT: InvalidArgument,
        "What a backward pass was to begin with cannot be its root.",
        "Begin with scalars that were computed from what requires gradients.";
    AUTOGRAD_FUNCTION_UNKNOWN: FailedPrecondition,
        "A backward pass came to a send or receive function that is not there: used up, or of another context.",
        "Retain the graph in every pass but the last; begin a pass in the context that its values came in.";
    AUTOGRAD_GRAPH_FREED: FailedPrecondition,
        "A backward pass reached a function whose values an earlier pass had released.",
        "Retain the graph in every pass but the last.";
    AUTOGRAD_UNUSED_SEND: FailedPrecondition,
        "A fast backward pass waited for a gradient of a value that was not used, or only where no gradient flows.",
        "Use what was sent, or choose smart mode.";
    AUTOGRAD_TIMEOUT: DeadlineExceeded,
        "A backward pass had not ended in its time; all that took part were told to give it up.",
        "Give it more time, or find out which worker does not answer.";
    AUTOGRAD_OPERATION: InvalidArgument,
        "An eager operation was given something that it does not take.",
        "Give what the message names.";
    AUTOGRAD_OPTIMIZER: InvalidArgument,
        "An optimizer was given a setting or a gradient that it cannot use.",
        "Give what the message names.";
}
