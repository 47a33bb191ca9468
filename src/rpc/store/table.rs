//! What a store's server holds and answers: keys, values, queues, and who waits for which keys. Pure.

use std::collections::{HashMap, HashSet, VecDeque};

use super::query::{NOT_READY, Query, READY, VALUE_MAX, block};

/// More bytes than all keys and values of a store have. An eighth more is taken for values that grow.
pub(super) const STORE_MAX: usize = 256 << 20;
/// More keys than a store has.
const STORE_KEYS_MAX: usize = 1 << 20;
/// More bytes than an answer has.
const ANSWER_MAX: usize = 64 << 20;
/// What a key costs beside its bytes, about.
const KEY_COST: usize = 64;

/// A connection's number.
pub(super) type Id = u64;

/// Why a query is not answered: its connection ends, as PyTorch's server ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refused(pub(super) &'static str);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) values: HashMap<Box<[u8]>, Vec<u8>>,
    queues: HashMap<Box<[u8]>, VecDeque<Vec<u8>>>,
    /// Bytes of keys, values and queues.
    bytes: usize,
    /// The keys that a connection waits for and that are not there.
    waits: HashMap<Id, HashSet<Box<[u8]>>>,
    /// The connections that wait for a key.
    waiters: HashMap<Box<[u8]>, HashSet<Id>>,
    /// Bytes of the keys that are waited for.
    waited: usize,
}

impl Table {
    /// Carries out a query of a connection. What is to be sent is appended to `answers`.
    ///
    /// # Errors
    /// Why the connection is to be ended.
    pub(super) fn handle(
        &mut self,
        from: Id,
        query: Query<'_>,
        answers: &mut Vec<(Id, Vec<u8>)>,
    ) -> Result<(), Refused> {
        let answer = match query {
            Query::Validate => return Ok(()),
            Query::Ping(nonce) => nonce.to_le_bytes().to_vec(),
            Query::Set(key, value) => return self.set(key, value.to_vec(), answers),
            Query::MultiSet(pairs) => {
                let set = |(key, value): (&[u8], &[u8])| self.set(key, value.to_vec(), answers);
                return pairs.into_iter().try_for_each(set);
            }
            Query::Append(key, value) => return self.append(key, value, answers),
            Query::CompareSet(key, expected, desired) => {
                self.compare_set(key, expected, desired, answers)?
            }
            Query::Get(key) => {
                let mut answer = Vec::new();
                block(self.get(key)?, &mut answer);
                answer
            }
            Query::MultiGet(keys) => {
                let mut answer = Vec::new();
                for key in keys {
                    block(self.get(key)?, &mut answer);
                    if answer.len() > ANSWER_MAX {
                        return Err(Refused("too many values at once"));
                    }
                }
                answer
            }
            Query::Add(key, by) => self.add(key, by, answers)?.to_le_bytes().to_vec(),
            Query::Check(keys) => {
                let is_there = keys.iter().all(|key| self.has(key));
                vec![if is_there { READY } else { NOT_READY }]
            }
            Query::Wait(keys) => {
                if !self.wait(from, &keys)? {
                    return Ok(());
                }
                vec![READY]
            }
            Query::CancelWait => {
                self.forget(from);
                vec![NOT_READY]
            }
            Query::Count => number(self.values.len()),
            Query::List => self.list()?,
            Query::Barrier(key, size) => match self.barrier(from, key, size, answers)? {
                true => vec![READY],
                false => return Ok(()),
            },
            Query::Delete(key) => number(usize::from(self.delete(key))),
            Query::QueuePush(key, value) => return self.push(key, value, answers),
            Query::QueuePop(key) => self.pop(key)?,
            Query::QueueLen(key) => number(self.queues.get(key).map_or(0, VecDeque::len)),
        };
        answers.push((from, answer));
        Ok(())
    }

    /// A connection has ended, or its wait has.
    pub(super) fn forget(&mut self, connection: Id) {
        for key in self.waits.remove(&connection).into_iter().flatten() {
            self.waited -= key.len() + KEY_COST;
            if let Some(waiters) = self.waiters.get_mut(&key) {
                waiters.remove(&connection);
                if waiters.is_empty() {
                    self.waiters.remove(&key);
                }
            }
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn get(&self, key: &[u8]) -> Result<&Vec<u8>, Refused> {
        self.values
            .get(key)
            .ok_or(Refused("a key that is not there"))
    }

    /// Makes room for a value in place of one of `before` bytes.
    fn grow(&mut self, key: &[u8], before: Option<usize>, after: usize) -> Result<(), Refused> {
        let cost = |size: Option<usize>| size.map_or(0, |size| size + key.len() + KEY_COST);
        let bytes = self.bytes - cost(before) + cost(Some(after));
        if after > VALUE_MAX {
            return Err(Refused("a value that has grown too long"));
        }
        let keys = self.values.len() + self.queues.len();
        if bytes > STORE_MAX || before.is_none() && keys >= STORE_KEYS_MAX {
            return Err(Refused("the store is full"));
        }
        self.bytes = bytes;
        Ok(())
    }

    fn set(
        &mut self,
        key: &[u8],
        value: Vec<u8>,
        answers: &mut Vec<(Id, Vec<u8>)>,
    ) -> Result<(), Refused> {
        self.grow(key, self.values.get(key).map(Vec::len), value.len())?;
        match self.values.get_mut(key) {
            Some(place) => *place = value,
            None => drop(self.values.insert(key.into(), value)),
        }
        self.wake(key, answers);
        Ok(())
    }

    /// Appends in place: a value is as long as many appends made it.
    fn append(
        &mut self,
        key: &[u8],
        value: &[u8],
        answers: &mut Vec<(Id, Vec<u8>)>,
    ) -> Result<(), Refused> {
        let Some(before) = self.values.get(key).map(Vec::len) else {
            return self.set(key, value.to_vec(), answers);
        };
        self.grow(key, Some(before), before + value.len())?;
        if let Some(whole) = self.values.get_mut(key) {
            // By an eighth, and not the double that a vector takes: the store's bound counts lengths.
            if whole.capacity() - before < value.len() {
                whole.reserve_exact(value.len().max(before / 8));
            }
            whole.extend_from_slice(value);
        }
        self.wake(key, answers);
        Ok(())
    }

    fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        answers: &mut Vec<(Id, Vec<u8>)>,
    ) -> Result<Vec<u8>, Refused> {
        let is_met = match self.values.get(key) {
            Some(value) => value == expected,
            None => expected.is_empty(),
        };
        if is_met {
            self.set(key, desired.to_vec(), answers)?;
        }
        let mut answer = Vec::new();
        // Of a key that is not there PyTorch's server says what was expected.
        block(
            self.values.get(key).map_or(expected, |value| value),
            &mut answer,
        );
        Ok(answer)
    }

    fn add(
        &mut self,
        key: &[u8],
        by: i64,
        answers: &mut Vec<(Id, Vec<u8>)>,
    ) -> Result<i64, Refused> {
        let before = match self.values.get(key) {
            None => 0,
            Some(value) => std::str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse::<i64>().ok())
                .ok_or(Refused("a number is added to a value that is none"))?,
        };
        let sum = before.wrapping_add(by);
        self.set(key, sum.to_string().into_bytes(), answers)?;
        Ok(sum)
    }

    fn list(&self) -> Result<Vec<u8>, Refused> {
        let mut answer = number(self.values.len());
        for key in self.values.keys() {
            block(key, &mut answer);
            if answer.len() > ANSWER_MAX {
                return Err(Refused("too many keys to list"));
            }
        }
        Ok(answer)
    }

    /// One more has come to a barrier. Whether it may pass at once; else it waits with those that came before.
    fn barrier(
        &mut self,
        from: Id,
        key: &[u8],
        size: i64,
        answers: &mut Vec<(Id, Vec<u8>)>,
    ) -> Result<bool, Refused> {
        // No client's key begins so: theirs are texts.
        let gate = [b"\xffbarrier", key].concat();
        if self.add(key, 1, answers)? < size {
            return self.wait(from, &[&gate]);
        }
        self.wake(&gate, answers);
        Ok(true)
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let value = self.values.remove(key);
        if let Some(value) = &value {
            self.bytes -= value.len() + key.len() + KEY_COST;
        }
        value.is_some()
    }

    /// Whether all keys are there; else the connection waits for those that are not.
    fn wait(&mut self, from: Id, keys: &[&[u8]]) -> Result<bool, Refused> {
        // A connection waits for one thing at a time.
        self.forget(from);
        let absent: HashSet<Box<[u8]>> = keys
            .iter()
            .filter(|key| !self.has(key))
            .map(|&key| key.into())
            .collect();
        let waited = self.waited + absent.iter().map(|key| key.len() + KEY_COST).sum::<usize>();
        if waited > STORE_MAX {
            return Err(Refused("too many keys are waited for"));
        }
        self.waited = waited;
        for key in &absent {
            self.waiters.entry(key.clone()).or_default().insert(from);
        }
        let is_there = absent.is_empty();
        if !is_there {
            self.waits.insert(from, absent);
        }
        Ok(is_there)
    }

    /// A key is there now.
    fn wake(&mut self, key: &[u8], answers: &mut Vec<(Id, Vec<u8>)>) {
        for waiter in self.waiters.remove(key).into_iter().flatten() {
            let Some(absent) = self.waits.get_mut(&waiter) else {
                continue;
            };
            if absent.remove(key) {
                self.waited -= key.len() + KEY_COST;
            }
            if absent.is_empty() {
                self.waits.remove(&waiter);
                answers.push((waiter, vec![READY]));
            }
        }
    }

    fn push(
        &mut self,
        key: &[u8],
        value: &[u8],
        answers: &mut Vec<(Id, Vec<u8>)>,
    ) -> Result<(), Refused> {
        let is_new = !self.queues.contains_key(key);
        let cost = value.len() + KEY_COST + if is_new { key.len() + KEY_COST } else { 0 };
        if self.bytes + cost > STORE_MAX {
            return Err(Refused("the store is full"));
        }
        self.bytes += cost;
        self.queues
            .entry(key.into())
            .or_default()
            .push_back(value.to_vec());
        self.wake(key, answers);
        Ok(())
    }

    /// The first of a queue: a count of one, and the value; or a count of zero.
    fn pop(&mut self, key: &[u8]) -> Result<Vec<u8>, Refused> {
        let mut answer = Vec::new();
        let Some(queue) = self.queues.get_mut(key) else {
            return Ok(number(0));
        };
        if let Some(value) = queue.pop_front() {
            self.bytes -= value.len() + KEY_COST;
            answer = number(1);
            block(&value, &mut answer);
        }
        if queue.is_empty() {
            self.queues.remove(key);
            self.bytes -= key.len() + KEY_COST;
        }
        Ok(answer)
    }
}

fn number(count: usize) -> Vec<u8> {
    (count as i64).to_le_bytes().to_vec()
}
