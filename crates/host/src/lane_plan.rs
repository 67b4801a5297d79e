//! How lanes of an association are connected, the first time and again.

use crate::queue::{Queue, QueueConnect};
use crate::{Error, InitiatorConfig, Options, TargetUrl};
use bpfof_nvme::fabrics::CATTR_DISABLE_SQ_FLOW_CONTROL;

/// How lanes of an association are connected.
#[derive(Debug)]
pub(crate) struct LanePlan {
    pub(crate) url: TargetUrl,
    pub(crate) options: Options,
    pub(crate) initiator: InitiatorConfig,
    pub(crate) cntlid: u16,
}

impl LanePlan {
    pub(crate) fn connect(&self, qid: u16) -> Result<Queue, Error> {
        let connected = Queue::connect(QueueConnect {
            url: &self.url,
            options: &self.options,
            initiator: self.initiator.clone(),
            qid,
            cattr: CATTR_DISABLE_SQ_FLOW_CONTROL,
            cntlid: self.cntlid,
            kato_ms: 0,
        });
        connected.map(|(queue, _)| queue)
    }
}
