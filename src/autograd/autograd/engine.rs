//! The local engine: what knows the functions of one worker, and runs gradients through them.

use super::ids::{ContextId, PassId};
use super::message::{Envelope, Input, Port, Start};
use super::passes::Ran;
use rendez::ground::Status;

/// The functions of one worker, and the passes that go through them. Called by any thread; of one pass, by one at a
/// time, except for [`discard`](Self::discard).
pub trait LocalEngine: Send + Sync {
    /// A tensor and its history.
    type Value: Clone + Send;
    /// A tensor without one: what travels.
    type Gradient: Clone + Send;

    /// True if gradients flow back through `value`.
    fn requires_gradient(&self, value: &Self::Value) -> bool;

    /// What of `value` travels.
    fn value(&self, value: &Self::Value) -> Self::Gradient;

    /// Keeps the values that a message takes away, until their context is forgotten.
    fn record_send(&self, envelope: &Envelope, values: &[Self::Value]);

    /// Forgets the values that a message was to take away.
    fn forget_send(&self, envelope: &Envelope);

    /// The values that a message brought, with the receive function as the history of those that want gradients.
    fn record_receive(&self, envelope: &Envelope, tensors: Vec<Self::Gradient>)
    -> Vec<Self::Value>;

    /// Values without history: of a message that nothing is recorded of.
    fn constants(&self, tensors: Vec<Self::Gradient>) -> Vec<Self::Value>;

    /// Refuses what cannot be a root.
    ///
    /// # Errors
    /// `AUTOGRAD_ROOT` saying why.
    fn check_roots(&self, roots: &[Self::Value]) -> Result<(), Status>;

    /// Keeps the roots of a pass that begins here.
    fn begin(&self, pass: PassId, roots: Vec<Self::Value>);

    /// Finds what gradients of `starts` flow to, beside what was found for the pass before: outputs of receive
    /// functions.
    ///
    /// # Errors
    /// If one of the functions on the way is gone.
    fn mark(&self, pass: PassId, starts: &[Start]) -> Result<Vec<Port>, Status>;

    /// True if [marking](Self::mark) `starts` takes a few microseconds at most; without any, if [running](Self::run)
    /// what is marked of the pass does. It is done where a message came in then, and by a thread that may take its
    /// time otherwise.
    fn is_light(&self, pass: PassId, starts: &[Start]) -> bool {
        let _ = (pass, starts);
        false
    }

    /// Takes gradients and runs what is ready. An input of a send function that was not marked is no input.
    ///
    /// # Errors
    /// What a function says; gradients that do not fit what was sent.
    fn run(
        &self,
        pass: PassId,
        inputs: Vec<Input<Self::Gradient>>,
    ) -> Result<Ran<Self::Gradient>, Status>;

    /// All has run. Unless `retain`, what ran is used up.
    fn finish(&self, pass: PassId, retain: bool);

    /// The pass failed. What it does not hold any more is ignored.
    fn discard(&self, pass: PassId);

    /// Forgets all functions of a context.
    fn forget(&self, context: ContextId);

    /// True if [forgetting](Self::forget) a context takes a few microseconds at most. It is done as
    /// [`is_light`](Self::is_light) says.
    fn forgets_lightly(&self, context: ContextId) -> bool {
        let _ = context;
        false
    }

    /// The sum of gradients of one leaf, of which there is one at least.
    ///
    /// # Errors
    /// If they cannot be added.
    fn sum(&self, parts: Vec<Self::Gradient>) -> Result<Self::Gradient, Status>;
}
