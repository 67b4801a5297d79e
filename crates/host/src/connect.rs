//! Connecting a controller through one portal or several.

use crate::association::Association;
use crate::credentials::{Credentials, KeyFiles};
use crate::paths::Owner;
use crate::several::Several;
use crate::{Controller, Error, Options, TargetUrl};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Keep-alive timeouts of restricted associations (docs/protocol.md, Queue Restriction).
const RESTRICTED_KEEP_ALIVE: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(10);

impl Controller {
    /// Connects to the subsystem of `url` and brings a controller to life. With several portals it connects through
    /// each of them ([`paths`](Self::paths)); one working portal is enough.
    ///
    /// # Errors
    /// No connection, no such subsystem, a target that refuses this host, or that breaks the
    /// protocol.
    pub fn connect(url: &TargetUrl, mut options: Options) -> Result<Self, Error> {
        if let Some(host_nqn) = &url.host_nqn {
            options.host_nqn.clone_from(host_nqn);
        }
        if url.keys != KeyFiles::default() {
            options.credentials = Credentials::read(&url.keys)?;
        }
        if let Some(path_timeout) = url.path_timeout {
            options.path_timeout = path_timeout;
        }
        if options.pushdown_only && !RESTRICTED_KEEP_ALIVE.contains(&options.keep_alive) {
            return Err(Error::RestrictedKeepAlive(options.keep_alive));
        }
        let (association, paths) = if url.further_portals.is_empty() {
            let mut association = Association::connect(url, &options)?;
            association.keep_alive()?;
            (Arc::new(association), None)
        } else {
            let (association, owner) = Owner::start(url, &options)?;
            let paths: Arc<dyn Several> = Arc::new(owner);
            (association, Some(paths))
        };
        let mut controller = Self::of(association);
        controller.url = url.clone();
        controller.paths = paths;
        if !controller.association.is_discovery() {
            controller.refresh_namespaces()?;
        }
        Ok(controller)
    }

    /// Starts a new association in place of this one, after a loss or to start afresh. Lanes of the old association
    /// must be [reconnected](crate::Lane::reconnect), functions loaded and file maps set again: they belonged to the
    /// old association.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect); the controller then stays as it was.
    pub fn reconnect(&mut self) -> Result<(), Error> {
        *self = Self::connect(&self.url, self.options.clone())?;
        Ok(())
    }
}
