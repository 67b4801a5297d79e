//! Queries of a database on a target, by pushdown or by plain reads, one network round trip a hop.

use crate::error::{SessionError, explain, explain_chain};
use crate::session::{Session, WHOLE_NAMESPACE, read};
use bpfkv::pushdown::{
    AggregatePushdown, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, RangePushdown, get_answer, get_argument,
};
use bpfkv::{
    Aggregate, AggregateCursor, GetCursor, KeyRange, RangeCursor, ReadRequest, Step, Summary, Value,
};
use bpfof_host::{Error, PushdownMany, Status, VectorChain};

/// The result of looking up one key of many.
pub type Looked = Result<Option<Value>, SessionError>;

/// The hops that a chain has taken before it exhausted its budget of bytes or instructions; `None` for other errors.
fn hops_within_budget(error: &Error) -> Option<u32> {
    let Error::Command { source, .. } = error else { return None };
    let budgets = [Status::BYTE_BUDGET_EXHAUSTED, Status::INSTRUCTION_BUDGET_EXHAUSTED];
    budgets.iter().any(|budget| source.status.same_code(*budget)).then_some(source.dw1)
}

impl Session {
    /// The value of a key.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn get(&mut self, key: u64, plain: bool) -> Result<Option<Value>, SessionError> {
        let Some(start) = self.cache.start_of_get(key)? else { return Ok(None) };
        if plain {
            let mut cursor = GetCursor::new();
            cursor.reset(key, start);
            loop {
                let reads = match cursor.step() {
                    Step::Read(reads) => reads.to_vec(),
                    Step::Done(value) => return Ok(value.copied()),
                };
                self.feed(&reads, |index, data| cursor.feed(index, data))?;
            }
        }
        let Some(argument) = get_argument(key) else { return Ok(None) };
        let sizes = (GET_ANSWER_BYTES as u32, GET_SCRATCH_BYTES);
        let call = self.call(self.get, start, &argument, sizes);
        let mut answer = Vec::new();
        self.lane.pushdown(&call, &mut answer).map_err(explain)?;
        Ok(get_answer(&answer)?.copied())
    }

    /// The values of keys, in their order.
    ///
    /// # Errors
    /// The [`SessionError`] of the first key that cannot be looked up.
    pub fn get_many(
        &mut self,
        keys: &[u64],
        plain: bool,
    ) -> Result<Vec<Option<Value>>, SessionError> {
        self.get_each(keys, plain)?.into_iter().collect()
    }

    /// The value of each key, or why it cannot be looked up, in their order. With `plain`, the lookups stop after the
    /// first key for which a read fails.
    ///
    /// # Errors
    /// [`SessionError`] for an error that does not belong to a single key.
    pub fn get_each(&mut self, keys: &[u64], plain: bool) -> Result<Vec<Looked>, SessionError> {
        if plain {
            let mut each = Vec::with_capacity(keys.len());
            for key in keys {
                let looked = self.get(*key, plain);
                let is_last = matches!(looked, Err(SessionError::Host(_) | SessionError::Read(_)));
                each.push(looked);
                if is_last {
                    break;
                }
            }
            return Ok(each);
        }
        // The keys that the cache does not show to be missing.
        let (mut places, mut starts, mut arguments) = (Vec::new(), Vec::new(), Vec::new());
        let mut values: Vec<Looked> = Vec::with_capacity(keys.len());
        for (place, key) in keys.iter().enumerate() {
            let start = self.cache.start_of_get(*key);
            if let Ok(Some(start)) = &start
                && let Some(argument) = get_argument(*key)
            {
                places.push(place);
                starts.push(Self::first_read(*start));
                arguments.push(argument);
            }
            values.push(start.map(|_| None).map_err(SessionError::from));
        }
        let chains = starts.iter().zip(&arguments);
        let chains: Vec<_> =
            chains.map(|(first, argument)| VectorChain { first: *first, argument }).collect();
        let call = PushdownMany {
            nsid: self.nsid,
            function: self.get.0,
            files: &WHOLE_NAMESPACE,
            chains: &chains,
            scratch_size_bytes: GET_SCRATCH_BYTES,
            answer_max_bytes: GET_ANSWER_BYTES as u32,
            limits: &self.limits,
        };
        self.lane.pushdown_many(&call, &mut |index, end| {
            let answer = end.map_err(explain_chain);
            values[places[index]] = answer.and_then(|(answer, _)| Ok(get_answer(answer)?.copied()));
        })?;
        Ok(values)
    }

    /// Passes the pairs of a range to `take`, in order.
    ///
    /// # Errors
    /// [`SessionError`], or the error that `take` returns.
    pub fn range<E: From<SessionError>>(
        &mut self,
        range: &KeyRange,
        plain: bool,
        take: &mut dyn FnMut(u64, &Value) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some((first, _)) = range.bounds() else { return Ok(()) };
        let start = self.cache.start_of_range(first).map_err(SessionError::from)?;
        if plain {
            let mut cursor = RangeCursor::new();
            cursor.reset(range, start);
            while let Step::Read(reads) = cursor.step() {
                let reads = reads.to_vec();
                self.feed(&reads, |index, data| cursor.feed(index, data))?;
                for pair in cursor.pairs() {
                    take(pair.key, &pair.value)?;
                }
                cursor.clear_pairs();
            }
            return Ok(());
        }
        let mut pushdown = RangePushdown::new(range, start, self.limits.hops)
            .with_scratch_limit(self.limits.scratch_bytes);
        let mut answer = Vec::new();
        while let Some(next) = pushdown.call() {
            let sizes = (next.answer_max_bytes, next.scratch_size_bytes);
            let call = self.call(self.range, next.first_offset_bytes, &next.argument, sizes);
            self.lane.pushdown(&call, &mut answer).map_err(explain)?;
            for (key, value) in pushdown.answer(&answer).map_err(SessionError::from)? {
                take(key, value)?;
            }
        }
        Ok(())
    }

    /// Aggregates of a range.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn aggregate(
        &mut self,
        range: &KeyRange,
        what: Aggregate,
        plain: bool,
    ) -> Result<Summary, SessionError> {
        let Some((first, _)) = range.bounds() else { return Ok(Summary::default()) };
        let start = self.cache.start_of_range(first)?;
        if plain {
            let mut cursor = AggregateCursor::new();
            cursor.reset(range, what, start);
            loop {
                let reads = match cursor.step() {
                    Step::Read(reads) => reads.to_vec(),
                    Step::Done(summary) => return Ok(summary),
                };
                self.feed(&reads, |index, data| cursor.feed(index, data))?;
            }
        }
        let mut pushdown = AggregatePushdown::new(range, what, start, self.limits.hops);
        let mut answer = Vec::new();
        while let Some(next) = pushdown.call() {
            let sizes = (next.answer_max_bytes, next.scratch_size_bytes);
            let call = self.call(self.range, next.first_offset_bytes, &next.argument, sizes);
            match self.lane.pushdown(&call, &mut answer) {
                Ok(_) => pushdown.answer(&answer)?,
                Err(error) if hops_within_budget(&error).is_some_and(|n| pushdown.shorten(n)) => {}
                Err(error) => return Err(explain(error)),
            }
        }
        Ok(*pushdown.summary())
    }

    /// Does a cursor's reads as plain reads, and feeds it the data.
    fn feed(
        &mut self,
        reads: &[ReadRequest],
        mut feed: impl FnMut(usize, &[u8]) -> Result<(), bpfkv::Corrupt>,
    ) -> Result<(), SessionError> {
        for (index, request) in reads.iter().enumerate() {
            let mut data = vec![0; request.length_bytes as usize];
            read(&mut self.lane, self.nsid, request.offset_bytes, &mut data)
                .map_err(SessionError::Read)?;
            feed(index, &data)?;
        }
        Ok(())
    }
}
