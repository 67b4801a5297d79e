//! Progress of long work, on terminals only.

use indicatif::{ProgressDrawTarget, ProgressStyle};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

pub use indicatif::ProgressBar;

/// A bar over `total` steps; silent when standard error is not a terminal.
pub fn steps(label: &str, total: u64) -> ProgressBar {
    bar(label, total, "{msg} {wide_bar} {pos}/{len} {elapsed}")
}

/// Takes the completed bytes and the total; returns whether to continue.
pub type Report<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Continues until `stop` is set.
pub fn unless_stopped(stop: &AtomicBool) -> ControlFlow<()> {
    if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Shows a bar over `total_bytes` during `work`, which reports its completed bytes and the total, and must end once
/// `stop` is set.
pub fn bytes<T>(
    label: &str,
    total_bytes: u64,
    stop: &AtomicBool,
    work: impl FnOnce(Report<'_>) -> T,
) -> T {
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let bar = bar(label, total_bytes, template);
    let outcome = work(&mut |done, _| {
        bar.set_position(done);
        unless_stopped(stop)
    });
    bar.finish_and_clear();
    outcome
}

fn bar(label: &str, total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(label.to_owned());
    bar
}
