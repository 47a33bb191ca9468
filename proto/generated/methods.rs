/// What every engine is asked, beside handing tensors over. Numbers up to 15 are of such methods; 1 gives back what it was given, and 7 what an offer of the application gives: their payloads are bytes.
pub mod engine_service {
/// Who is connected to you?
#[derive(Clone, Copy, Debug)] pub enum GetConnected {}
impl crate::Method for GetConnected {
const NUMBER: u32 = 2;
const NAME: &'static str = "GetConnected";
type Request = crate::services::ConnectedRequest;
type Answer = crate::services::ConnectedReply;
}
/// What waits at you?
#[derive(Clone, Copy, Debug)] pub enum GetPending {}
impl crate::Method for GetPending {
const NUMBER: u32 = 3;
const NAME: &'static str = "GetPending";
type Request = crate::services::PendingRequest;
type Answer = crate::services::PendingReply;
}
/// What does your counter show?
#[derive(Clone, Copy, Debug)] pub enum GetClock {}
impl crate::Method for GetClock {
const NUMBER: u32 = 4;
const NAME: &'static str = "GetClock";
type Request = crate::services::ClockRequest;
type Answer = crate::services::ClockReply;
}
/// What have you counted?
#[derive(Clone, Copy, Debug)] pub enum GetStat {}
impl crate::Method for GetStat {
const NUMBER: u32 = 5;
const NAME: &'static str = "GetStat";
type Request = crate::services::StatRequest;
type Answer = crate::services::StatReply;
}
/// Gives a piece of what was recorded.
#[derive(Clone, Copy, Debug)] pub enum GetDump {}
impl crate::Method for GetDump {
const NUMBER: u32 = 6;
const NAME: &'static str = "GetDump";
type Request = crate::services::DumpRequest;
type Answer = crate::services::DumpReply;
}
}
/// What a worker is asked over the control plane by masters.
pub mod worker_service {
/// Which devices have you?
#[derive(Clone, Copy, Debug)] pub enum GetStatus {}
impl crate::Method for GetStatus {
const NUMBER: u32 = 16;
const NAME: &'static str = "GetStatus";
type Request = crate::tensorflow::GetStatusRequest;
type Answer = crate::tensorflow::GetStatusResponse;
}
/// Begins a session, or opens another line to it.
#[derive(Clone, Copy, Debug)] pub enum CreateWorkerSession {}
impl crate::Method for CreateWorkerSession {
const NUMBER: u32 = 17;
const NAME: &'static str = "CreateWorkerSession";
type Request = crate::tensorflow::CreateWorkerSessionRequest;
type Answer = crate::tensorflow::CreateWorkerSessionResponse;
}
/// Ends a session.
#[derive(Clone, Copy, Debug)] pub enum DeleteWorkerSession {}
impl crate::Method for DeleteWorkerSession {
const NUMBER: u32 = 18;
const NAME: &'static str = "DeleteWorkerSession";
type Request = crate::tensorflow::DeleteWorkerSessionRequest;
type Answer = crate::tensorflow::DeleteWorkerSessionResponse;
}
/// Forgets variables.
#[derive(Clone, Copy, Debug)] pub enum CleanupAll {}
impl crate::Method for CleanupAll {
const NUMBER: u32 = 19;
const NAME: &'static str = "CleanupAll";
type Request = crate::tensorflow::CleanupAllRequest;
type Answer = crate::tensorflow::CleanupAllResponse;
}
}
/// What a master asks on the line of its session.
pub mod worker_session {
/// Prepares a part of a graph, which comes beside it as a tensor of bytes.
#[derive(Clone, Copy, Debug)] pub enum RegisterGraph {}
impl crate::Method for RegisterGraph {
const NUMBER: u32 = 1;
const NAME: &'static str = "RegisterGraph";
type Request = crate::tensorflow::RegisterGraphRequest;
type Answer = crate::tensorflow::RegisterGraphResponse;
}
/// A part is not run any more. Only told.
#[derive(Clone, Copy, Debug)] pub enum DeregisterGraph {}
impl crate::Method for DeregisterGraph {
const NUMBER: u32 = 2;
const NAME: &'static str = "DeregisterGraph";
type Request = crate::tensorflow::DeregisterGraphRequest;
type Answer = crate::services::Nothing;
}
/// Runs a part in a step; the answer comes when it has run.
#[derive(Clone, Copy, Debug)] pub enum RunGraph {}
impl crate::Method for RunGraph {
const NUMBER: u32 = 3;
const NAME: &'static str = "RunGraph";
type Request = crate::tensorflow::RunGraphRequest;
type Answer = crate::tensorflow::RunGraphResponse;
}
/// A step is over everywhere. Only told.
#[derive(Clone, Copy, Debug)] pub enum CleanupGraph {}
impl crate::Method for CleanupGraph {
const NUMBER: u32 = 4;
const NAME: &'static str = "CleanupGraph";
type Request = crate::tensorflow::CleanupGraphRequest;
type Answer = crate::services::Nothing;
}
/// Ends what runs of a step. Only told.
#[derive(Clone, Copy, Debug)] pub enum CancelStep {}
impl crate::Method for CancelStep {
const NUMBER: u32 = 5;
const NAME: &'static str = "CancelStep";
type Request = crate::services::CancelStepRequest;
type Answer = crate::services::Nothing;
}
}
/// What a master is asked over the control plane.
pub mod master_service {
/// Hears a client on its line from then on.
#[derive(Clone, Copy, Debug)] pub enum OpenLine {}
impl crate::Method for OpenLine {
const NUMBER: u32 = 22;
const NAME: &'static str = "OpenLine";
type Request = crate::services::OpenLineRequest;
type Answer = crate::services::OpenLineResponse;
}
}
/// What a client in another process asks on its line.
pub mod master_session {
/// Begins a session; its graph comes beside it as a tensor of bytes.
#[derive(Clone, Copy, Debug)] pub enum CreateSession {}
impl crate::Method for CreateSession {
const NUMBER: u32 = 1;
const NAME: &'static str = "CreateSession";
type Request = crate::tensorflow::CreateSessionRequest;
type Answer = crate::tensorflow::CreateSessionResponse;
}
/// Adds nodes to the graph, which come beside it.
#[derive(Clone, Copy, Debug)] pub enum ExtendSession {}
impl crate::Method for ExtendSession {
const NUMBER: u32 = 2;
const NAME: &'static str = "ExtendSession";
type Request = crate::tensorflow::ExtendSessionRequest;
type Answer = crate::tensorflow::ExtendSessionResponse;
}
/// Runs a step; feeds come beside it, and what is fetched beside the answer.
#[derive(Clone, Copy, Debug)] pub enum RunStep {}
impl crate::Method for RunStep {
const NUMBER: u32 = 3;
const NAME: &'static str = "RunStep";
type Request = crate::tensorflow::RunStepRequest;
type Answer = crate::tensorflow::RunStepResponse;
}
/// Prepares a partial run.
#[derive(Clone, Copy, Debug)] pub enum PartialRunSetup {}
impl crate::Method for PartialRunSetup {
const NUMBER: u32 = 4;
const NAME: &'static str = "PartialRunSetup";
type Request = crate::tensorflow::PartialRunSetupRequest;
type Answer = crate::tensorflow::PartialRunSetupResponse;
}
/// Goes on with a partial run, as a step is run.
#[derive(Clone, Copy, Debug)] pub enum PartialRun {}
impl crate::Method for PartialRun {
const NUMBER: u32 = 5;
const NAME: &'static str = "PartialRun";
type Request = crate::tensorflow::RunStepRequest;
type Answer = crate::tensorflow::RunStepResponse;
}
/// That partial run will not be continued: only the handles count. Only told.
#[derive(Clone, Copy, Debug)] pub enum Abandon {}
impl crate::Method for Abandon {
const NUMBER: u32 = 6;
const NAME: &'static str = "Abandon";
type Request = crate::tensorflow::RunStepRequest;
type Answer = crate::services::Nothing;
}
/// Prepares a step that will be run often.
#[derive(Clone, Copy, Debug)] pub enum MakeCallable {}
impl crate::Method for MakeCallable {
const NUMBER: u32 = 7;
const NAME: &'static str = "MakeCallable";
type Request = crate::tensorflow::MakeCallableRequest;
type Answer = crate::tensorflow::MakeCallableResponse;
}
/// Runs one; feeds come beside it, and what is fetched beside the answer.
#[derive(Clone, Copy, Debug)] pub enum RunCallable {}
impl crate::Method for RunCallable {
const NUMBER: u32 = 8;
const NAME: &'static str = "RunCallable";
type Request = crate::tensorflow::RunCallableRequest;
type Answer = crate::tensorflow::RunCallableResponse;
}
/// Forgets one.
#[derive(Clone, Copy, Debug)] pub enum ReleaseCallable {}
impl crate::Method for ReleaseCallable {
const NUMBER: u32 = 9;
const NAME: &'static str = "ReleaseCallable";
type Request = crate::tensorflow::ReleaseCallableRequest;
type Answer = crate::tensorflow::ReleaseCallableResponse;
}
/// Ends a session.
#[derive(Clone, Copy, Debug)] pub enum CloseSession {}
impl crate::Method for CloseSession {
const NUMBER: u32 = 10;
const NAME: &'static str = "CloseSession";
type Request = crate::tensorflow::CloseSessionRequest;
type Answer = crate::tensorflow::CloseSessionResponse;
}
/// Which devices are there?
#[derive(Clone, Copy, Debug)] pub enum ListDevices {}
impl crate::Method for ListDevices {
const NUMBER: u32 = 11;
const NAME: &'static str = "ListDevices";
type Request = crate::tensorflow::ListDevicesRequest;
type Answer = crate::tensorflow::ListDevicesResponse;
}
/// Forgets variables, and ends the sessions that share them.
#[derive(Clone, Copy, Debug)] pub enum Reset {}
impl crate::Method for Reset {
const NUMBER: u32 = 12;
const NAME: &'static str = "Reset";
type Request = crate::tensorflow::ResetRequest;
type Answer = crate::tensorflow::ResetResponse;
}
/// The client no longer waits for that step. Only told.
#[derive(Clone, Copy, Debug)] pub enum GiveUp {}
impl crate::Method for GiveUp {
const NUMBER: u32 = 13;
const NAME: &'static str = "GiveUp";
type Request = crate::services::GiveUpRequest;
type Answer = crate::services::Nothing;
}
}
