//! Questions of HTTP requests to the reactors: one at a time, and one answer for all requests that wait for it.
//!
//! A request that arrives while a question is under way gets the answer to the next one, so that the answer covers
//! everything before the request. Each answer takes time of the reactors from the hosts: however many requests there
//! are, each kind of question is asked at most ten times a second.

use crate::{PATIENCE, Reporter, Slowest, metrics};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Time between the end of a round of questions and the next round.
const PAUSE: Duration = Duration::from_millis(100);

/// A kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// All counters, as OpenMetrics text.
    Metrics,
    /// The same as JSON, for the page.
    Report,
    /// The slowest commands.
    Slow,
}

impl Question {
    const ALL: [Question; 3] = [Question::Metrics, Question::Report, Question::Slow];
}

/// The content type and the content, or why there is none.
pub(crate) type Answer = Result<(&'static str, Arc<str>), String>;

/// Puts questions to the thread that asks the reactors. The number says which connection gets the answer.
#[derive(Clone)]
pub(crate) struct Questions(Sender<(Question, u64)>);

impl Questions {
    /// Starts the thread that asks, which first calls `begin`. It calls `tell` with each answer, for the number of each
    /// connection that waits.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn start(
        sources: (Reporter, Slowest),
        begin: impl FnOnce() + Send + 'static,
        tell: impl Fn(u64, &Answer) + Send + 'static,
    ) -> io::Result<Self> {
        let (to, from) = mpsc::channel();
        let thread = thread::Builder::new().name("metrics-ask".into());
        thread.spawn(move || {
            begin();
            answer_all(&from, &sources, tell);
        })?;
        Ok(Self(to))
    }

    /// Asks; the answer goes to `number`.
    pub(crate) fn ask(&self, question: Question, number: u64) {
        // The thread lives as long as a sender exists.
        let _ = self.0.send((question, number));
    }
}

fn answer_all(
    asked: &Receiver<(Question, u64)>,
    sources: &(Reporter, Slowest),
    tell: impl Fn(u64, &Answer),
) {
    let mut ended: Option<Instant> = None;
    while let Ok(first) = asked.recv() {
        if let Some(left) = ended.and_then(|ended| PAUSE.checked_sub(ended.elapsed())) {
            thread::sleep(left);
        }
        let waiting: Vec<(Question, u64)> = [first].into_iter().chain(asked.try_iter()).collect();
        for question in Question::ALL {
            let mut numbers = waiting.iter().filter(|(of, _)| *of == question).peekable();
            if numbers.peek().is_some() {
                let answer = answer(question, sources);
                numbers.for_each(|(_, number)| tell(*number, &answer));
            }
        }
        ended = Some(Instant::now());
    }
}

fn answer(question: Question, (report, slowest): &(Reporter, Slowest)) -> Answer {
    let report = || report(PATIENCE).map_err(|error| error.to_string());
    match question {
        Question::Metrics => {
            let text = metrics::text(report()?).map_err(|error| error.to_string())?;
            Ok((metrics::CONTENT_TYPE, text.into()))
        }
        Question::Report => json(&report()?),
        Question::Slow => json(&slowest(PATIENCE).map_err(|error| error.to_string())?),
    }
}

fn json(value: &impl serde::Serialize) -> Answer {
    let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
    Ok(("application/json", text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_controller::NoReport;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_answer_serves_all_earlier_requests() {
        // The thread that asks tells the times: this one may be late.
        let (begun, begins) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        let (goes, questions_asked) = (std::sync::Mutex::new(goes), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&questions_asked);
        let slowest: Slowest = Arc::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            begun.send(Instant::now()).expect("the test listens");
            goes.lock().expect("one thread").recv().expect("the test goes on");
            Ok(Vec::new())
        });
        let report: Reporter = Arc::new(|_| Err(NoReport(3)));
        let (to, told) = mpsc::channel();
        let tell = move |number, answer: &Answer| {
            to.send((number, answer.clone(), Instant::now())).expect("the test listens");
        };
        let questions = Questions::start((report, slowest), || {}, tell).expect("a thread");
        questions.ask(Question::Slow, 0);
        begins.recv().expect("it is asked");
        // These come too late for the first answer.
        (1..=100).for_each(|number| questions.ask(Question::Slow, number));
        questions.ask(Question::Metrics, 101);
        go.send(()).expect("it waits");
        let (number, _, first_ended) = told.recv().expect("told");
        let next_began = begins.recv().expect("it is asked again");
        let pause = next_began.duration_since(first_ended);
        assert!(number == 0 && pause >= PAUSE, "the reactors have other things to do: {pause:?}");
        go.send(()).expect("it waits");
        let answers: Vec<(u64, Answer, Instant)> = told.iter().take(101).collect();
        assert_eq!(questions_asked.load(Ordering::Relaxed), 2);
        assert!(answers.iter().all(|(number, answer, _)| answer.is_ok() == (*number != 101)));
    }
}
