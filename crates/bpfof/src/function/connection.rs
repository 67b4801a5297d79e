//! Options that name a target, and the functions that are installed there.

use super::identity::Identity;
use bpfof_host::{Controller, FunctionId, TargetUrl};
use bpfof_terminal::target_url;
use clap::Args;

#[derive(Args)]
pub(crate) struct Target {
    /// The target: nvme-tcp://HOST:PORT/NQN.
    #[arg(long, env = "BPFOF_TARGET", value_parser = target_url)]
    pub(super) target: TargetUrl,
    #[command(flatten)]
    pub(super) identity: Identity,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Connects with the host identity of the options.
pub(super) fn connect(options: &Target) -> Result<Controller, Box<dyn std::error::Error>> {
    let mut url = options.target.clone();
    url.host_nqn = options.identity.host_nqn.clone().or(url.host_nqn);
    let mut controller = Controller::connect(&url, options.identity.options())?;
    controller.pushdown_limits()?;
    Ok(controller)
}

/// The installed function with this name or id.
pub(super) fn installed(
    controller: &mut Controller,
    name_or_id: &str,
) -> Result<FunctionId, bpfof_host::Error> {
    match name_or_id.parse() {
        Ok(id) => Ok(FunctionId(id)),
        Err(_) => controller.installed_function(name_or_id),
    }
}
