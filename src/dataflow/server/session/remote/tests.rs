//! What a client is answered after it has waited in vain.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, Weak};

use super::*;
use crate::server::Session;
use crate::server::rpc_stream::{Question, ServerEnd, Service};
use rendez::control::Services;
use rendez::ground::{StepId, TaskName};
use rendez_proto::services::OpenLineResponse;
use rendez_proto::tensorflow::{
    CloseSessionResponse, CreateSessionResponse, ExtendSessionResponse, ListDevicesResponse,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// A master that hands on what it is asked, to be answered when the test likes. It says at once which devices it has:
/// none; and, if it is told so, that a session is made.
#[derive(Debug)]
struct HandsOn {
    asked: Mutex<Sender<Question>>,
    creates: bool,
}

impl Service for HandsOn {
    fn asked(self: Arc<Self>, question: Question) {
        match question.method {
            ListDevices::NUMBER => {
                let answer = ListDevicesResponse::default();
                question.answer.give::<ListDevices>(Ok((answer, vec![])));
            }
            CreateSession::NUMBER if self.creates => Scene::answer_created(question, "s"),
            _ => {
                let _ = self.asked.lock().unwrap().send(question);
            }
        }
    }

    fn lost(self: Arc<Self>, _: StepId, _: Status) {}
}

/// Its task, and a client's session with it whose operations may take 50 ms.
struct Scene {
    engine: Engine,
    session: Session,
    asked: Receiver<Question>,
    _service: Arc<HandsOn>,
}

impl Scene {
    fn new(creates: bool) -> Self {
        let (hand_on, asked) = channel();
        let service = Arc::new(HandsOn {
            asked: Mutex::new(hand_on),
            creates,
        });
        let served: Weak<HandsOn> = Arc::downgrade(&service);
        let place = Arc::<OnceLock<Engine>>::default();
        let (known, lines) = (Arc::clone(&place), Mutex::new(vec![]));
        let services = Services::new().serve::<OpenLine>(move |call, asked| {
            let engine = known.wait();
            let caller = (&TaskName::parse(&call.task)?, call.incarnation);
            let line = ServerEnd::open(engine, StepId(asked.line), caller, served.clone())?;
            lines.lock().unwrap().push(line);
            let incarnation = engine.incarnation().0;
            Ok(OpenLineResponse { incarnation })
        });
        let mut config = crate::server::testing::config("/job:m/task:0");
        config.control = true;
        config.listen = Some("127.0.0.1:0".parse().unwrap());
        let engine = Engine::start_with(config, services).unwrap();
        place.set(engine.clone()).unwrap();
        let target = engine.tcp_address().unwrap().to_string();
        let mut config = crate::server::testing::config("/job:c/task:0");
        config.control = true;
        let session = Session::connect_with(&target, config).unwrap();
        let session = session.configured(ConfigProto {
            operation_timeout_in_ms: 50,
            ..ConfigProto::default()
        });
        Self {
            engine,
            session: session.unwrap(),
            asked,
            _service: service,
        }
    }

    /// The next question of this kind.
    fn next<M: Method>(&self) -> (M::Request, Question) {
        loop {
            let question = self.asked.recv_timeout(PATIENCE).expect("a question");
            if question.method == M::NUMBER {
                return (question.read::<M>().unwrap(), question);
            }
        }
    }

    fn answer_created(question: Question, handle: &str) {
        let answer = CreateSessionResponse {
            session_handle: handle.into(),
            graph_version: 0,
        };
        question.answer.give::<CreateSession>(Ok((answer, vec![])));
    }

    fn answer_extended(question: Question, new_graph_version: i64) {
        let answer = ExtendSessionResponse { new_graph_version };
        question.answer.give::<ExtendSession>(Ok((answer, vec![])));
    }

    /// Does what is answered at once, until that comes within its deadline.
    fn until_in_time(&self, does: impl Fn(&Session) -> Result<(), Status>) {
        let is_done = (0..100).any(|_| does(&self.session).is_ok());
        assert!(is_done, "it is never answered in time");
    }

    /// Waits until all that was answered before has come.
    fn await_answers(&self) {
        self.until_in_time(|session| session.devices().map(drop));
    }

    /// Does what asks, and answers nothing by its deadline. Gives the question.
    fn late<M: Method>(
        &self,
        does: impl FnOnce(&Session) -> Result<(), Status>,
    ) -> (M::Request, Question) {
        let status = does(&self.session).unwrap_err();
        assert_eq!(status.reason(), catalogue::CALL_DEADLINE, "{status}");
        self.next::<M>()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Its end asks for that of the session, and waits no longer than its settings say.
        self.engine.shutdown(Duration::ZERO);
    }
}

#[test]
fn a_graph_that_grew_after_its_deadline_grows_on() {
    let scene = Scene::new(true);
    let extend = |session: &Session| session.extend(GraphDef::default());
    scene.until_in_time(|session| session.create(GraphDef::default()));
    let (asked, question) = scene.late::<ExtendSession>(extend);
    assert_eq!(asked.current_graph_version, 0);
    // Until it is answered no other can say what it extends.
    assert_eq!(
        extend(&scene.session).unwrap_err().reason(),
        catalogue::CALL_DEADLINE
    );
    Scene::answer_extended(question, 1);
    scene.await_answers();
    let (asked, question) = scene.late::<ExtendSession>(extend);
    assert_eq!(asked.current_graph_version, 1);
    // One that is refused leaves it as it was.
    question
        .answer
        .refuse(Status::of(catalogue::GRAPH_NODE_EXISTS, "'x'"));
    scene.await_answers();
    let (asked, _) = scene.late::<ExtendSession>(extend);
    assert_eq!(asked.current_graph_version, 1);
}

#[test]
fn a_session_that_was_made_after_its_deadline_is_closed() {
    let scene = Scene::new(false);
    let create = |session: &Session| session.create(GraphDef::default());
    let (_, first) = scene.late::<CreateSession>(create);
    let (_, second) = scene.late::<CreateSession>(create);
    for (question, handle) in [(second, "second"), (first, "first")] {
        Scene::answer_created(question, handle);
        let (asked, question) = scene.next::<CloseSession>();
        assert_eq!(asked.session_handle, handle);
        let answer = CloseSessionResponse {};
        question.answer.give::<CloseSession>(Ok((answer, vec![])));
    }
}

#[test]
fn what_was_made_in_a_session_after_its_deadline_is_ended() {
    let scene = Scene::new(true);
    scene.until_in_time(|session| session.create(GraphDef::default()));
    let callable = |session: &Session| session.callable(&[], &["y"], &[]).map(drop);
    let (_, question) = scene.late::<MakeCallable>(callable);
    let answer = MakeCallableResponse { handle: 7 };
    question.answer.give::<MakeCallable>(Ok((answer, vec![])));
    let (asked, _) = scene.next::<ReleaseCallable>();
    assert_eq!((asked.session_handle.as_str(), asked.handle), ("s", 7));

    let partial_run = |session: &Session| session.partial_run(&[], &["y"], &[]).map(drop);
    let (_, question) = scene.late::<PartialRunSetup>(partial_run);
    let partial_run_handle = "p".to_owned();
    let answer = PartialRunSetupResponse { partial_run_handle };
    question
        .answer
        .give::<PartialRunSetup>(Ok((answer, vec![])));
    let (asked, _) = scene.next::<Abandon>();
    assert_eq!(
        (asked.session_handle, asked.partial_run_handle),
        ("s".to_owned(), "p".to_owned())
    );
}

#[test]
fn a_session_whose_master_was_lost_is_over() {
    let scene = Scene::new(true);
    scene.until_in_time(|session| session.create(GraphDef::default()));
    scene.engine.shutdown(Duration::ZERO);
    let until = Instant::now() + PATIENCE;
    loop {
        let status = scene.session.run(&[], &["y"], &[]).unwrap_err();
        if status.reason() == catalogue::SESSION_UNKNOWN {
            break;
        }
        assert!(Instant::now() < until, "{status}");
    }
    let extended = scene.session.extend(GraphDef::default()).unwrap_err();
    assert_eq!(extended.reason(), catalogue::SESSION_UNKNOWN, "{extended}");
    let closed = scene.session.close().unwrap_err();
    assert_eq!(closed.reason(), catalogue::SESSION_UNKNOWN, "{closed}");
}
