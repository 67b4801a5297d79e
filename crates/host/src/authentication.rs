//! DH-HMAC-CHAP on a queue that was just connected (NVMe Base 2.0 §8.13).

use crate::{Error, Options};
use bpfof_auth::dhchap::{HostAuth, HostStep, RECEIVE_BYTES};
use bpfof_nvme::Sqe;
use bpfof_nvme::fabrics::{FabricsCommand, SecurityProtocol};

/// Bits of Connect's answer (NVMe Base 2.0 §6.3, AUTHREQ): authentication, and secure channel
/// concatenation, which this library does not have.
const ASKS_FOR_AUTHENTICATION: u32 = 1 << 17;
const ASKS_FOR_CONCATENATION: u32 = 1 << 18;

/// Sends a command and waits for its end: its name, the command, its outgoing data, and the most bytes to accept.
pub(crate) type Call<'a> = dyn FnMut(&'static str, Sqe, &[u8], u32) -> Result<Vec<u8>, Error> + 'a;

/// Authenticates as the target demands in its answer to Connect. If this host has the target's secret, a target that
/// demands no authentication is refused: it could be an impostor.
pub(crate) fn authenticate(
    call: &mut Call<'_>,
    options: &Options,
    subsystem: &str,
    answer: u32,
) -> Result<(), Error> {
    let credentials = &options.credentials;
    if answer & ASKS_FOR_CONCATENATION != 0 {
        let why = "the target asks for secure channel concatenation (TLS keys from \
                   authentication), which this host does not support; configure a TLS key on both \
                   sides instead";
        return Err(Error::Credentials(why.to_owned()));
    }
    if answer & ASKS_FOR_AUTHENTICATION == 0 {
        return match credentials.dhchap_ctrl_key {
            Some(_) => Err(Error::TargetNotAuthenticated),
            None => Ok(()),
        };
    }
    let config = credentials.dhchap(&options.host_nqn, subsystem)?;
    let config = config.ok_or(Error::AuthenticationRequired)?;
    let (mut host, mut step) = HostAuth::new(config, 1);
    loop {
        match step {
            HostStep::Exchange(message) => {
                send(call, &message)?;
                step = host.received(&receive(call)?);
            }
            HostStep::Finished { last, result } => {
                if let Some(message) = last {
                    // After an error the target need not receive it.
                    let sent = send(call, &message);
                    if result.is_ok() {
                        sent?;
                    }
                }
                return match result {
                    Ok(_) => Ok(()),
                    Err(error) => Err(Error::AuthenticationFailed(error.to_string())),
                };
            }
        }
    }
}

fn send(call: &mut Call<'_>, message: &[u8]) -> Result<(), Error> {
    let length_bytes = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let command =
        FabricsCommand::AuthenticationSend { protocol: SecurityProtocol::IN_BAND, length_bytes };
    call("Authentication Send", command.to_sqe(), message, 0).map(drop)
}

fn receive(call: &mut Call<'_>) -> Result<Vec<u8>, Error> {
    let command = FabricsCommand::AuthenticationReceive {
        protocol: SecurityProtocol::IN_BAND,
        length_bytes: RECEIVE_BYTES,
    };
    call("Authentication Receive", command.to_sqe(), &[], RECEIVE_BYTES)
}
