//! The dialler's side of a greeting.

use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, hello_reply};

use super::rungs::Rungs;
use super::talk::Talk;
use super::{Agreed, Event, Expected, GreetingTerms, Job, Machine, No, Outcome, Side};
use crate::control::peer::PeerHello;
use crate::control::refusal::{Refusal, clip};
use crate::control::transport::{Path, PathWish};
use crate::ground::{Code, catalogue};

/// The dialler.
#[derive(Debug)]
pub(crate) struct Dialler<'a> {
    terms: GreetingTerms<'a>,
    /// The task that is dialled.
    task: &'a str,
    talk: Talk,
    rungs: Rungs,
    /// Our hello lets us be sent to a Unix address.
    may_be_near: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Waits for the answer to our hello.
    Hello,
    /// Waits until a batch of ours is taken; more follow unless it was the last.
    Passing { with: With, is_last: bool },
    /// Waits for the peer's next batch.
    Taking(With),
    /// Our ends are being made.
    Opening(With, Path),
    /// Waits for the peer's ends.
    Offered(With, Path),
    /// Our ends are being connected.
    Connecting(With, Path, String),
    /// Our ends are being proved, and the peer's verdict is waited for.
    Proving(With, Path, String),
    /// The peer's verdict is there, ours is waited for.
    Proved(With, Path, String, String),
    /// Waits until the peer knows that the transport is not taken.
    Withdrawn(With),
    /// Waits for a ticket.
    Ticket(With),
    /// The data connections are being opened.
    Dialling(With),
    /// It counts here; waits until it counts there.
    Counted(Box<Agreed>),
    /// It is over.
    Over,
}

/// With whom.
#[derive(Clone, Debug)]
struct With {
    peer: PeerHello,
    read_domain: bool,
    channels: u32,
}

impl<'a> Dialler<'a> {
    /// A greeting of `task`, of which nothing is said yet.
    pub(crate) fn new(terms: GreetingTerms<'a>, task: &'a str) -> Self {
        Self {
            terms,
            task,
            talk: Talk::new(task),
            rungs: Rungs::new(Vec::new()),
            may_be_near: false,
            state: State::Hello,
        }
    }

    /// The peer has said what is due, or something else.
    fn heard(&mut self, state: State, body: Body, side: &mut impl Side) -> Result<State, Refusal> {
        match (state, body) {
            (State::Hello, Body::HelloReply(reply)) => self.answered(reply.outcome, side),
            (
                State::Passing {
                    with,
                    is_last: false,
                },
                Body::Ack(_),
            ) => self.pass(with, side),
            (State::Passing { with, .. }, Body::Ack(_)) => Ok(State::Taking(with)),
            (State::Taking(with), Body::Descriptors(batch)) => self.take(with, batch, side),
            (State::Offered(with, path), Body::OfferReply(reply)) => {
                self.connect(with, path, reply, side)
            }
            (State::Proving(with, path, why), Body::ProveReply(reply)) => {
                Ok(State::Proved(with, path, why, reply.no))
            }
            (State::Withdrawn(with), Body::Ack(_)) => self.climb(with, side),
            (State::Ticket(with), Body::DataOpenReply(reply)) => self.dial(with, &reply, side),
            (State::Counted(agreed), Body::Ack(_)) => {
                self.talk.agree(*agreed);
                Ok(State::Over)
            }
            (state, _) => Err(self.talk.broken(state.due())),
        }
    }

    /// The job of this state is done.
    fn done(
        &mut self,
        state: State,
        done: Result<(), Refusal>,
        side: &mut impl Side,
    ) -> Result<State, Refusal> {
        let no = |refusal: &Refusal| No::tried(refusal.status.message());
        match (state, done) {
            (State::Opening(with, path), Ok(())) => {
                let (ends, device) = side.ends();
                self.talk.ask(Body::Offer(proto::Offer {
                    ends,
                    device: clip(&device),
                    transport: path.number(),
                }));
                Ok(State::Offered(with, path))
            }
            (State::Opening(with, path), Err(refusal)) => {
                self.rungs.fail(path, no(&refusal));
                self.climb(with, side)
            }
            (State::Connecting(with, path, why), Ok(())) => {
                side.begin(Job::Prove);
                self.talk.ask(Body::Prove(proto::Prove {}));
                Ok(State::Proving(with, path, why))
            }
            (State::Connecting(with, path, _), Err(refusal)) => {
                Ok(self.withdraw(with, path, no(&refusal), side))
            }
            (State::Proved(with, path, why, said), Ok(())) if said.is_empty() => {
                side.count(&with.peer)?;
                self.talk
                    .ask(Body::OfferDone(proto::OfferDone { no: said }));
                let agreed = self.rungs.agreed(&with.peer, path, Some(why));
                Ok(State::Counted(Box::new(agreed)))
            }
            (State::Proved(with, path, _, said), done) => {
                let no = match done {
                    Err(refusal) => no(&refusal),
                    Ok(()) => No::said(&with.peer.task, &said),
                };
                Ok(self.withdraw(with, path, no, side))
            }
            (State::Dialling(with), done) => {
                done?;
                side.count(&with.peer)?;
                self.talk.ask(Body::DataReady(proto::DataReady {}));
                let agreed = self.rungs.agreed(&with.peer, Path::Tcp, None);
                Ok(State::Counted(Box::new(agreed)))
            }
            // No other state has a job.
            (state, _) => Ok(state),
        }
    }

    /// The peer has answered our hello.
    fn answered(
        &mut self,
        outcome: Option<hello_reply::Outcome>,
        side: &mut impl Side,
    ) -> Result<State, Refusal> {
        use hello_reply::Outcome as Answer;
        let hello = match outcome {
            Some(Answer::Accepted(hello)) => hello,
            Some(Answer::Refused(refusal)) => {
                self.talk.is_silent = true;
                return Err(Refusal::from_wire(self.task, &refusal));
            }
            Some(Answer::Elsewhere(address)) => {
                if !self.may_be_near {
                    return Err(self.talk.broken("sent elsewhere against our wish"));
                }
                self.talk.outcome = Some(Ok(Outcome::Elsewhere(clip(&address))));
                return Ok(State::Over);
            }
            None => return Err(self.talk.broken("an answer to a hello that is none")),
        };
        let (peer, read_domain) = side.judge(&hello)?;
        if peer.task != self.task {
            let message = format!(
                "dialled {}, but {} answers at that address",
                self.task, peer.task
            );
            let reason = catalogue::PEER_UNKNOWN;
            return Err(Refusal::fatal(Code::NotFound, reason, message));
        }
        let mut with = With {
            peer,
            read_domain,
            channels: 0,
        };
        if self.terms.is_near {
            side.gather(&with.peer, read_domain)?;
            return self.pass(with, side);
        }
        with.channels = side.channels(&with.peer)?;
        self.rungs = Rungs::new(side.rungs());
        self.rungs.judge(&with.peer, self.terms);
        self.climb(with, side)
    }

    /// Passes our next batch of descriptors.
    fn pass(&mut self, with: With, side: &mut impl Side) -> Result<State, Refusal> {
        let batch = side.pass(&with.peer)?;
        let is_last = batch.last;
        self.talk.ask(Body::Descriptors(batch));
        Ok(State::Passing { with, is_last })
    }

    /// Takes a batch of the peer's; after the last one it counts.
    fn take(
        &mut self,
        with: With,
        batch: proto::Descriptors,
        side: &mut impl Side,
    ) -> Result<State, Refusal> {
        let is_last = batch.last;
        side.take(&with.peer, with.read_domain, batch)?;
        if !is_last {
            self.talk.acknowledge();
            return Ok(State::Taking(with));
        }
        side.count(&with.peer)?;
        self.talk.acknowledge();
        self.talk.agree(Agreed::near(with.peer, with.read_domain));
        Ok(State::Over)
    }

    /// Tries the next rung; below the last are data connections, unless better is demanded.
    fn climb(&mut self, with: With, side: &mut impl Side) -> Result<State, Refusal> {
        if let Some(path) = self.rungs.next() {
            side.begin(Job::Open(path, with.peer.clone()));
            return Ok(State::Opening(with, path));
        }
        self.rungs.demanded(&with.peer.task, self.terms)?;
        self.talk.ask(Body::DataOpen(proto::DataOpen {
            channels: with.channels,
            no_better: clip(&self.rungs.why()),
        }));
        Ok(State::Ticket(with))
    }

    /// The peer has answered our offer.
    fn connect(
        &mut self,
        with: With,
        path: Path,
        reply: proto::OfferReply,
        side: &mut impl Side,
    ) -> Result<State, Refusal> {
        if !reply.no.is_empty() {
            side.drop_ends();
            self.rungs.fail(path, No::said(&with.peer.task, &reply.no));
            return self.climb(with, side);
        }
        if reply.ends.len() != with.channels as usize {
            return Err(self.talk.broken("another number of ends than channels"));
        }
        let why = taken(path, &side.ends().1, &reply.device);
        side.begin(Job::Connect(reply.ends));
        Ok(State::Connecting(with, path, why))
    }

    /// A transport that was offered is not taken.
    fn withdraw(&mut self, with: With, path: Path, no: No, side: &mut impl Side) -> State {
        side.drop_ends();
        self.talk
            .ask(Body::OfferDone(proto::OfferDone { no: no.aloud() }));
        self.rungs.fail(path, no);
        State::Withdrawn(with)
    }

    fn dial(
        &mut self,
        with: With,
        reply: &proto::DataOpenReply,
        side: &mut impl Side,
    ) -> Result<State, Refusal> {
        let id = <[u8; 16]>::try_from(reply.ticket.as_slice())
            .map_err(|_| self.talk.broken("a ticket of another length"))?;
        side.begin(Job::Dial(Expected {
            incarnation: with.peer.incarnation,
            channels: with.channels,
            id,
            expires_ms: reply.expires_ms,
        }));
        Ok(State::Dialling(with))
    }
}

impl Machine for Dialler<'_> {
    fn begin(&mut self, side: &mut impl Side) {
        let hello = side.hello(self.task);
        // Without a demand for another transport, which also follows from a Unix address that did not do.
        let demands = [PathWish::Auto, PathWish::Shm].map(PathWish::number);
        let demand = u32::try_from(hello.path).unwrap_or(u32::MAX);
        self.may_be_near = !self.terms.is_near && demands.contains(&demand);
        self.talk.ask(Body::Hello(hello));
    }

    fn step(&mut self, event: Event, side: &mut impl Side) -> Result<(), Refusal> {
        let state = std::mem::replace(&mut self.state, State::Over);
        self.state = match event {
            Event::Heard(envelope) => {
                let body = self.talk.hear(envelope)?;
                self.heard(state, body, side)?
            }
            // No word on the transport: the greeting is put off.
            Event::Done(Err(refusal)) if refusal.is_busy() => return Err(refusal),
            Event::Done(done) => self.done(state, done, side)?,
        };
        Ok(())
    }

    fn awaits_job(&self) -> bool {
        matches!(
            self.state,
            State::Opening(..) | State::Connecting(..) | State::Proved(..) | State::Dialling(_)
        )
    }

    fn talk(&mut self) -> &mut Talk {
        &mut self.talk
    }
}

impl State {
    /// What another message is than the one that is due.
    const fn due(&self) -> &'static str {
        match self {
            Self::Hello => "an answer to a hello that is none",
            Self::Taking(_) => "a request that names no descriptors",
            Self::Offered(..) => "an answer that names no ends",
            Self::Proving(..) => "an answer that is no verdict",
            Self::Ticket(_) => "an answer that names no ticket",
            _ => "an answer that is no ack",
        }
    }
}

/// Why a transport is taken: for people.
pub(super) fn taken(path: Path, own: &str, theirs: &str) -> String {
    format!("{} from {own} to {}", path.title(), clip(theirs))
}
