//! How lanes of an association are connected, both the first time and later.

use crate::queue::{OnOpen, Queue, QueueConnect};
use crate::{Error, InitiatorConfig, Options, TargetUrl};
use bpfof_nvme::fabrics::CATTR_DISABLE_SQ_FLOW_CONTROL;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// How long a target may say that a queue id is in use after its connection was closed.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause before the queue is connected again.
const PAUSE: Duration = Duration::from_millis(5);

/// How lanes of an association are connected.
#[derive(Debug)]
pub(crate) struct LanePlan {
    pub(crate) url: TargetUrl,
    pub(crate) options: Options,
    pub(crate) initiator: InitiatorConfig,
    pub(crate) cntlid: u16,
    /// Where the admin queue is connected: another address of the name may lead to another controller.
    pub(crate) peer: Option<SocketAddr>,
}

impl LanePlan {
    /// Connects a queue whose last connection may have been closed just now: a target may notice that late.
    pub(crate) fn connect_again(&self, qid: u16) -> Result<Queue, Error> {
        let begun = Instant::now();
        loop {
            match self.connect(qid, &|_| Ok(())) {
                Err(Error::Command { source, .. })
                    if source.is_of_queue_id() && begun.elapsed() < PATIENCE =>
                {
                    thread::sleep(PAUSE);
                }
                done => return done,
            }
        }
    }

    /// Connects a queue; calls `on_open` with the connection before anything is sent on it.
    pub(crate) fn connect(&self, qid: u16, on_open: &OnOpen<'_>) -> Result<Queue, Error> {
        let connected = Queue::connect(QueueConnect {
            url: &self.url,
            options: &self.options,
            initiator: self.initiator.clone(),
            qid,
            cattr: CATTR_DISABLE_SQ_FLOW_CONTROL,
            cntlid: self.cntlid,
            peer: self.peer,
            kato_ms: 0,
            on_open,
        });
        connected.map(|(queue, _)| queue)
    }
}

#[cfg(test)]
mod tests {
    use crate::association::Association;
    use crate::{Error, Options, TargetUrl};
    use bpfof_controller::{NamespaceConfig, NamespaceSource, Server, TargetConfig};
    use std::io;

    /// As if the name service failed later, or returned addresses of other targets.
    #[test]
    fn lanes_lead_to_where_the_admin_queue_does() {
        let source = NamespaceSource::Memory { size_bytes: 1 << 20, latency_us: 0, iops: 0 };
        let config = TargetConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            namespaces: vec![NamespaceConfig::new(source, 512)],
            ..TargetConfig::default()
        };
        let server = Server::start(&config).expect("the target starts");
        let url = format!("nvme-tcp://{}/{}", server.address(), config.nqn);
        let url: TargetUrl = url.parse().expect("an address");
        let mut association = Association::connect(&url, &Options::default()).expect("it connects");
        // Longer than names can be, so that no name server is asked.
        association.url.host = "x".repeat(300);
        let (limits, namespaces) = (association.data_limits(), Vec::new().into());
        for _ in 0..2 {
            let opened = association.open_queue(&namespaces, limits, &|_, _| Ok(()));
            let (_, qid, plan) = opened.expect("it is connected");
            association.ids.give_back(qid);
            plan.connect_again(qid).expect("it is connected again");
        }
        let source = io::Error::other("no answer");
        assert!(Error::Resolve { host: "x".to_owned(), source }.is_refused_queue());
    }
}
