//! The data of a Connect command (NVMe Base 2.0 §6.3).

use crate::NulPadded;
use crate::bytes::{get, put};
use thiserror::Error;

/// Longest NQN in bytes, without its terminator (NVMe Base 2.0 §4.5).
pub const NQN_MAX_BYTES: usize = 223;

/// Size of an NQN field in bytes, its terminator included (NVMe Base 2.0 §6.3).
const NQN_FIELD_BYTES: usize = 256;
const SUBNQN_AT: usize = 256;
const HOSTNQN_AT: usize = 512;

/// Why an NQN is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NqnError {
    /// No zero byte within the field.
    #[error("is not terminated")]
    NotTerminated,
    /// The text is not UTF-8.
    #[error("is not UTF-8")]
    NotUtf8,
    /// The text is empty.
    #[error("is empty")]
    Empty,
}

/// Why Connect data is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConnectDataError {
    /// The subsystem NQN is bad.
    #[error("the subsystem NQN {0}")]
    SubNqn(NqnError),
    /// The host NQN is bad.
    #[error("the host NQN {0}")]
    HostNqn(NqnError),
}

impl ConnectDataError {
    /// Offset in the data of the parameter at fault, in bytes, as Connect Invalid Parameters
    /// reports it (NVMe Base 2.0 §6.3, IPO).
    #[must_use]
    pub const fn offset(self) -> u16 {
        match self {
            Self::SubNqn(_) => SUBNQN_AT as u16,
            Self::HostNqn(_) => HOSTNQN_AT as u16,
        }
    }

    /// Name of that parameter.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::SubNqn(_) => "SUBNQN",
            Self::HostNqn(_) => "HOSTNQN",
        }
    }
}

/// The data of a Connect command (NVMe Base 2.0 §6.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Host identifier (bytes 15:0).
    pub hostid: [u8; 16],
    /// Controller identifier; FFFFh lets the subsystem choose (bytes 17:16).
    pub cntlid: u16,
    /// NQN of the subsystem (bytes 511:256).
    pub subnqn: String,
    /// NQN of the host (bytes 767:512); empty if it has none, as SPDK's tools.
    pub hostnqn: String,
}

impl ConnectData {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = 1024;

    /// Reads the data.
    ///
    /// # Errors
    /// An NQN that is not terminated or not UTF-8; an empty one of the subsystem.
    pub fn from_bytes(bytes: &[u8; 1024]) -> Result<Self, ConnectDataError> {
        let subnqn = nqn(&get(bytes, SUBNQN_AT)).map_err(ConnectDataError::SubNqn)?;
        if subnqn.is_empty() {
            return Err(ConnectDataError::SubNqn(NqnError::Empty));
        }
        let hostnqn = nqn(&get(bytes, HOSTNQN_AT)).map_err(ConnectDataError::HostNqn)?;
        Ok(Self { hostid: get(bytes, 0), cntlid: get(bytes, 16), subnqn, hostnqn })
    }

    /// Writes the data. An NQN longer than 255 bytes is cut.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 1024] {
        let mut bytes = [0; 1024];
        put(&mut bytes, 0, self.hostid);
        put(&mut bytes, 16, self.cntlid);
        put(&mut bytes, SUBNQN_AT, NulPadded::<{ NQN_FIELD_BYTES - 1 }>::new(&self.subnqn));
        put(&mut bytes, HOSTNQN_AT, NulPadded::<{ NQN_FIELD_BYTES - 1 }>::new(&self.hostnqn));
        bytes
    }
}

fn nqn(field: &[u8; NQN_FIELD_BYTES]) -> Result<String, NqnError> {
    let end = field.iter().position(|&byte| byte == 0).ok_or(NqnError::NotTerminated)?;
    let text = std::str::from_utf8(&field[..end]).map_err(|_| NqnError::NotUtf8)?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_bad_names() {
        let data = ConnectData {
            hostid: [7; 16],
            cntlid: 0xFFFF,
            subnqn: "nqn.2026-01.io.example:disk".into(),
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:1".into(),
        };
        let good = data.to_bytes();
        assert_eq!(ConnectData::from_bytes(&good), Ok(data));

        let mut bad = good;
        bad[256..512].fill(b'x');
        let error = ConnectData::from_bytes(&bad).unwrap_err();
        assert_eq!(error, ConnectDataError::SubNqn(NqnError::NotTerminated));
        assert_eq!(error.offset(), 256);
        let mut bad = good;
        bad[512] = 0xFF;
        let error = ConnectData::from_bytes(&bad).unwrap_err();
        assert_eq!(error, ConnectDataError::HostNqn(NqnError::NotUtf8));
        assert_eq!((error.offset(), error.field()), (512, "HOSTNQN"));
        let mut bad = good;
        bad[256] = 0;
        let error = ConnectData::from_bytes(&bad).unwrap_err();
        assert_eq!(error, ConnectDataError::SubNqn(NqnError::Empty));
        assert_eq!(error.to_string(), "the subsystem NQN is empty");
        let mut nameless = good;
        nameless[512] = 0;
        assert_eq!(ConnectData::from_bytes(&nameless).map(|data| data.hostnqn), Ok(String::new()));
    }
}
