//! Progress of long work, on terminals only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `total_bytes`; silent when standard error is not a terminal.
pub(crate) fn bytes(label: &str, total_bytes: u64) -> ProgressBar {
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    bar(label, total_bytes, template)
}

/// A bar over `total` steps.
pub(crate) fn steps(label: &str, total: u64) -> ProgressBar {
    bar(label, total, "{msg} {wide_bar} {pos}/{len} {elapsed}")
}

fn bar(label: &str, total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(label.to_owned());
    bar
}
