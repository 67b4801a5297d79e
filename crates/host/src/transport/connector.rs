//! Connections to a target in this process.

use bpfof_device::fabric::Endpoint;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Makes connections to a target in this process, which has their other ends.
#[derive(Clone)]
pub struct Connector(Arc<dyn Fn() -> io::Result<Endpoint> + Send + Sync>);

impl Connector {
    /// A connector that calls `connect` for each connection.
    pub fn new(connect: impl Fn() -> io::Result<Endpoint> + Send + Sync + 'static) -> Connector {
        Connector(Arc::new(connect))
    }

    pub(super) fn connect(&self) -> io::Result<Endpoint> {
        let Connector(connect) = self;
        connect()
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl PartialEq for Connector {
    fn eq(&self, other: &Connector) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Connector {}
