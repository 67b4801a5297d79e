//! What a controller with several paths asks of them; [`paths`](crate::paths) implements it.

use crate::association::Association;
use crate::installed::Installed;
use crate::map_identity::MapIdentity;
use crate::paths::PathInfo;
use crate::{Error, FileMapObject, Lane, MapChange, NamespaceInfo};
use bpfof_nvme::{Cqe, Installation, Sqe};
use std::fmt::Debug;
use std::sync::Arc;

/// The paths of a controller. Dropping this ends them. Functions are identified by their ids.
pub(crate) trait Several: Debug + Send + Sync {
    /// The state of each path, for the program.
    fn info(&self) -> Vec<PathInfo>;

    /// Sends an admin command over the best path. If that path is lost and the command changes nothing, sends it again
    /// over another.
    fn call(
        &self,
        sqe: Sqe,
        data_out: &[u8],
        data_in_max_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), Error>;

    /// Calls `act`, which changes nothing, with the association of the best path. If that path is lost, calls it again
    /// with that of another.
    fn on_one(
        &self,
        act: &mut dyn FnMut(&Arc<Association>) -> Result<(), Error>,
    ) -> Result<(), Error>;

    /// Most data of one command in bytes, by any path.
    fn max_transfer_bytes(&self) -> u32;

    /// Opens a lane that continues on another path when its own is lost.
    fn open_lane(&self, namespaces: &Arc<[NamespaceInfo]>) -> Result<Lane, Error>;

    /// Loads a function on all associations.
    fn load(&self, object: &[u8], entry: u32) -> Result<u32, Error>;

    /// Installs a function at all targets.
    fn install(&self, object: &[u8], installation: Installation) -> Result<u32, Error>;

    /// Lets requests use the installed function with this id, and requires the target of each path to have that
    /// function installed.
    fn require(&self, function: u32, installed: &Installed) -> Result<(), Error>;

    /// Unloads a function everywhere.
    fn unload(&self, function: u32) -> Result<(), Error>;

    /// Sets the map of a file on all associations.
    fn set_file_map(&self, map: &FileMapObject, meanwhile: &mut dyn FnMut()) -> Result<(), Error>;

    /// Changes an entry of a function map on all associations. Returns false as
    /// [`Controller::map_change`](crate::Controller::map_change).
    fn change_map(
        &self,
        map: &MapIdentity,
        change: MapChange,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Error>;

    /// Shuts all controllers down in order.
    fn shut_down(&self) -> Result<(), Error>;
}
