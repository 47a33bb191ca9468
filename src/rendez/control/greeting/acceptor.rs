//! The acceptor's side of a greeting.

use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, hello_reply};

use super::dialler::taken;
use super::rungs::Rungs;
use super::talk::Talk;
use super::{Agreed, Event, GreetingTerms, Job, Machine, No, Outcome, Side, choice};
use crate::control::hello::meant_for;
use crate::control::peer::PeerHello;
use crate::control::refusal::{Refusal, clip};
use crate::control::transport::Path;
use crate::ground::{Code, catalogue};

/// Offers that are declined in one greeting: more than there are transports, whatever release the dialler is.
const OFFERS_MAX: usize = 16;

/// The acceptor.
#[derive(Debug)]
pub(crate) struct Acceptor<'a> {
    terms: GreetingTerms<'a>,
    talk: Talk,
    rungs: Rungs,
    /// Offers that were declined.
    declined: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Waits for the dialler's hello.
    Hello,
    /// Waits for the dialler's next batch.
    Taking(With),
    /// Waits until a batch of ours is taken; more follow unless it was the last.
    Passing { with: With, is_last: bool },
    /// Waits for an offer, or for what does without one.
    Choosing(With),
    /// Our ends are being made, for an offer.
    Opening(With, Path, proto::Offer),
    /// Our ends are being connected, to those of this device.
    Connecting(With, Path, String),
    /// Waits for the dialler to connect its ends.
    Answered(With, Path, String),
    /// Our ends are being proved.
    Proving(With, Path, String),
    /// Our verdict is told: it is good, for this reason, or there is none. Waits for the dialler's.
    Told(With, Path, Option<String>),
    /// Waits until the dialler has its data connections.
    Expecting(With),
    /// Waits until we have them.
    Gathering(With),
    /// It is over.
    Over,
}

/// With whom.
#[derive(Clone, Debug)]
struct With {
    peer: PeerHello,
    read_domain: bool,
}

impl<'a> Acceptor<'a> {
    /// A greeting of which nothing is said yet.
    pub(crate) fn new(terms: GreetingTerms<'a>) -> Self {
        Self {
            terms,
            talk: Talk::new("(unnamed)"),
            rungs: Rungs::new(Vec::new()),
            declined: 0,
            state: State::Hello,
        }
    }

    /// The peer has said what is due, or something else.
    fn heard(&mut self, state: State, body: Body, side: &mut impl Side) -> Result<State, Refusal> {
        match (state, body) {
            (State::Hello, Body::Hello(hello)) => self.greeted(&hello, side),
            (State::Taking(with), Body::Descriptors(batch)) => self.take(with, batch, side),
            (
                State::Passing {
                    with,
                    is_last: false,
                },
                Body::Ack(_),
            ) => self.pass(with, side),
            (State::Passing { with, .. }, Body::Ack(_)) => {
                // The dialler counts already: a refusal now is the end of a connection, not of a greeting.
                self.talk.is_silent = true;
                side.count(&with.peer)?;
                self.talk.agree(Agreed::near(with.peer, with.read_domain));
                Ok(State::Over)
            }
            (State::Choosing(with), Body::Offer(offer)) => self.offered(with, offer, side),
            (State::Choosing(with), Body::DataOpen(open)) => self.expect(with, &open, side),
            (State::Answered(with, path, device), Body::Prove(_)) => {
                side.begin(Job::Prove);
                Ok(State::Proving(with, path, device))
            }
            (State::Answered(with, path, _), Body::OfferDone(done)) if !done.no.is_empty() => {
                Ok(self.withdrawn(with, path, &done.no, side))
            }
            (State::Told(with, path, Some(why)), Body::OfferDone(done)) if done.no.is_empty() => {
                side.count(&with.peer)?;
                self.talk.acknowledge();
                self.talk
                    .agree(self.rungs.agreed(&with.peer, path, Some(why)));
                Ok(State::Over)
            }
            (State::Told(with, path, _), Body::OfferDone(done)) if !done.no.is_empty() => {
                Ok(self.withdrawn(with, path, &done.no, side))
            }
            (State::Expecting(with), Body::DataReady(_)) => {
                side.begin(Job::Gather);
                Ok(State::Gathering(with))
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
            (State::Opening(with, path, offer), Ok(())) => {
                side.begin(Job::Connect(offer.ends));
                Ok(State::Connecting(with, path, offer.device))
            }
            (State::Connecting(with, path, theirs), Ok(())) => {
                let (ends, device) = side.ends();
                let why = taken(path, &device, &theirs);
                self.talk.answer(Body::OfferReply(proto::OfferReply {
                    ends,
                    device: clip(&device),
                    no: String::new(),
                }));
                Ok(State::Answered(with, path, why))
            }
            (State::Opening(with, path, _) | State::Connecting(with, path, _), Err(refusal)) => {
                side.drop_ends();
                let no = no(&refusal);
                self.decline(&no);
                self.rungs.fail(path, no);
                Ok(State::Choosing(with))
            }
            (State::Proving(with, path, why), done) => {
                let no = done.err().map(|refusal| no(&refusal));
                let told = no.as_ref().map(No::aloud).unwrap_or_default();
                self.talk
                    .answer(Body::ProveReply(proto::ProveReply { no: told }));
                let why = no.is_none().then_some(why);
                if let Some(no) = no {
                    self.rungs.fail(path, no);
                }
                Ok(State::Told(with, path, why))
            }
            (State::Gathering(with), done) => {
                done?;
                side.count(&with.peer)?;
                self.talk.acknowledge();
                self.talk
                    .agree(self.rungs.agreed(&with.peer, Path::Tcp, None));
                Ok(State::Over)
            }
            // No other state has a job.
            (state, _) => Ok(state),
        }
    }

    /// The dialler has said hello.
    fn greeted(&mut self, hello: &proto::Hello, side: &mut impl Side) -> Result<State, Refusal> {
        use hello_reply::Outcome as Answer;
        let (answer, state) = match self.admit(hello, side) {
            Ok(Some(with)) => {
                with.peer.task.clone_into(&mut self.talk.task);
                let state = match self.terms.is_near {
                    true => State::Taking(with),
                    false => State::Choosing(with),
                };
                (Answer::Accepted(side.hello("")), Ok(state))
            }
            Ok(None) => {
                let address = side.near_address();
                self.talk.outcome = Some(Ok(Outcome::Elsewhere(address.clone())));
                (Answer::Elsewhere(address), Ok(State::Over))
            }
            Err(refusal) => {
                self.talk.is_silent = true;
                (Answer::Refused(refusal.to_wire()), Err(refusal))
            }
        };
        let outcome = Some(answer);
        self.talk
            .answer(Body::HelloReply(proto::HelloReply { outcome }));
        state
    }

    /// Judges a hello; nothing if its dialler is to go to our Unix address.
    fn admit(
        &mut self,
        hello: &proto::Hello,
        side: &mut impl Side,
    ) -> Result<Option<With>, Refusal> {
        let (peer, read_domain) = side.judge(hello)?;
        meant_for(hello, self.terms.own)?;
        if self.terms.is_near {
            choice::may_be_near(hello, self.terms)?;
        } else {
            let rungs = side.rungs();
            let theirs = choice::demand_of(hello, &rungs)?;
            if choice::is_elsewhere(hello, theirs, self.terms)? {
                return Ok(None);
            }
            self.rungs = Rungs::new(rungs);
            self.rungs.judge(&peer, self.terms);
        }
        side.admit(&peer)?;
        Ok(Some(With { peer, read_domain }))
    }

    /// Takes a batch of the dialler's; after the last one its link is judged, and it is our turn.
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
        side.accept_link(&with.peer)?;
        self.talk.acknowledge();
        side.gather(&with.peer, with.read_domain)?;
        self.pass(with, side)
    }

    /// Passes our next batch of descriptors.
    fn pass(&mut self, with: With, side: &mut impl Side) -> Result<State, Refusal> {
        let batch = side.pass(&with.peer)?;
        let is_last = batch.last;
        self.talk.ask(Body::Descriptors(batch));
        Ok(State::Passing { with, is_last })
    }

    /// The dialler offers a transport.
    fn offered(
        &mut self,
        with: With,
        offer: proto::Offer,
        side: &mut impl Side,
    ) -> Result<State, Refusal> {
        if offer.ends.len() != side.channels(&with.peer)? as usize {
            return Err(self.talk.broken("another number of ends than channels"));
        }
        if self.declined >= OFFERS_MAX {
            return Err(self.talk.broken("transports without end"));
        }
        let no = match self.rungs.find(offer.transport) {
            Some((path, None)) => {
                side.begin(Job::Open(path, with.peer.clone()));
                return Ok(State::Opening(with, path, offer));
            }
            Some((_, Some(no))) => no.clone(),
            None => No::tried("this release does not know this transport"),
        };
        self.decline(&no);
        Ok(State::Choosing(with))
    }

    fn decline(&mut self, no: &No) {
        self.declined += 1;
        self.talk.answer(Body::OfferReply(proto::OfferReply {
            no: no.aloud(),
            ..proto::OfferReply::default()
        }));
    }

    /// The dialler does not take the transport that it offered. A reason of our own goes before what it says.
    fn withdrawn(&mut self, with: With, path: Path, said: &str, side: &mut impl Side) -> State {
        side.drop_ends();
        if self
            .rungs
            .find(path.number())
            .is_some_and(|(_, no)| no.is_none())
        {
            self.rungs.fail(path, No::said(&with.peer.task, said));
        }
        self.talk.acknowledge();
        State::Choosing(with)
    }

    /// The dialler wants to open data connections.
    fn expect(
        &mut self,
        with: With,
        open: &proto::DataOpen,
        side: &mut impl Side,
    ) -> Result<State, Refusal> {
        self.rungs.not_asked(&with.peer.task, &open.no_better);
        self.rungs.demanded(&with.peer.task, self.terms)?;
        let own = side.channels(&with.peer)?;
        if own != open.channels {
            let message = format!(
                "{} counts {} channels to us, and we {own}",
                with.peer.task, open.channels
            );
            let reason = catalogue::PEER_REFUSED;
            return Err(Refusal::fatal(Code::FailedPrecondition, reason, message));
        }
        let reply = side.expect(own)?;
        self.talk.answer(Body::DataOpenReply(reply));
        Ok(State::Expecting(with))
    }
}

impl Machine for Acceptor<'_> {
    fn begin(&mut self, _: &mut impl Side) {}

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
            State::Opening(..) | State::Connecting(..) | State::Proving(..) | State::Gathering(_)
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
            Self::Hello => "a connection that does not begin with a hello",
            Self::Taking(_) => "a request that names no descriptors",
            Self::Passing { .. } => "an answer that is no ack",
            Self::Choosing(_) => "a request that opens no data connections",
            Self::Answered(..) => "a request that proves no transport",
            Self::Told(_, _, None) => "a transport that is taken though it is not good",
            Self::Told(..) => "a request that does not end the proof",
            _ => "a request before its data connections are there",
        }
    }
}
