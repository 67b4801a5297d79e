//! Passes the library's log messages to the program.

use super::call;
use crate::failure::Failure;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::ffi::{CString, c_char, c_int};
use std::sync::{OnceLock, PoisonError, RwLock};

/// `void (*)(int level, const char *line)`
type Say = unsafe extern "C" fn(c_int, *const c_char);

/// The program's function. Locked for reading while it is called.
static SAY: RwLock<Option<Say>> = RwLock::new(None);

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = record.args().to_string().replace('\0', " ");
        let (Ok(line), say) = (CString::new(line), SAY.read()) else { return };
        if let Some(say) = *say.unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: what C promises of the function; the line is valid while it runs.
            unsafe { say(number(record.level()), line.as_ptr()) };
        }
    }

    fn flush(&self) {}
}

/// `BPFOF_LOG_ERROR`, …
const fn number(level: Level) -> c_int {
    level as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpfof_set_log(say: Option<Say>, level: c_int) -> c_int {
    static IS_OURS: OnceLock<bool> = OnceLock::new();
    call(-1, || {
        let level = match level {
            _ if say.is_none() => LevelFilter::Off,
            1 => LevelFilter::Error,
            2 => LevelFilter::Warn,
            3 => LevelFilter::Info,
            4 => LevelFilter::Debug,
            _ => return Err(Failure::invalid("level is not one of BPFOF_LOG_ERROR to _DEBUG")),
        };
        if !IS_OURS.get_or_init(|| log::set_logger(&Logger).is_ok()) {
            let why = "the program has its own logger of Rust's crate log, which gets the messages";
            return Err(Failure::new(libc::EBUSY, why));
        }
        *SAY.write().unwrap_or_else(PoisonError::into_inner) = say;
        log::set_max_level(level);
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::sync::Mutex;

    static TOLD: Mutex<Vec<(c_int, String)>> = Mutex::new(Vec::new());

    unsafe extern "C" fn say(level: c_int, line: *const c_char) {
        // SAFETY: a line ends in a zero.
        let line = unsafe { CStr::from_ptr(line) }.to_string_lossy().into_owned();
        TOLD.lock().expect("no panic").push((level, line));
    }

    #[test]
    fn the_log_function_gets_lines_up_to_its_level() {
        // SAFETY: it takes no memory.
        let set = |say, level| unsafe { bpfof_set_log(say, level) };
        log::warn!("before");
        assert_eq!(set(Some(say), 0), -1);
        assert_eq!(set(Some(say), 5), -1);
        assert_eq!(set(Some(say), 2), 0);
        log::warn!("one\0two");
        log::info!("too much");
        assert_eq!(set(Some(say), 3), 0);
        log::info!("more");
        assert_eq!(set(None, 0), 0);
        log::error!("no function is set");
        let told = TOLD.lock().expect("no panic").clone();
        // Other tests may have logged something meanwhile.
        let ours: Vec<&str> = ["one two", "more", "before", "too much", "no function is set"]
            .into_iter()
            .filter(|line| told.iter().any(|(_, told)| told == line))
            .collect();
        assert_eq!(ours, ["one two", "more"]);
        assert!(
            told.contains(&(2, "one two".to_owned())) && told.contains(&(3, "more".to_owned()))
        );
    }
}
