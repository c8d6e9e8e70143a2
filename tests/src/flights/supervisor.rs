//! The supervisor's own connection to a broker that it kills.

use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::runtime::Runtime;

use super::wall::{Deadline, LOOK_EVERY, pause};
use crate::raw::{RawClient, group};

/// A connection with the runtime that it lives on; none after a kill, until it is needed.
#[derive(Debug)]
pub struct Supervisor {
    /// What the connection lives on.
    pub runtime: Runtime,
    /// The connection.
    pub client: Option<RawClient>,
}

impl Supervisor {
    /// Not connected yet.
    pub fn new() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            runtime,
            client: None,
        })
    }

    /// The committed offsets of a group, which may be refused for a moment after a kill.
    ///
    /// # Errors
    /// If they are refused until the deadline.
    pub fn committed(
        &mut self,
        address: SocketAddr,
        group: &str,
        topic: &str,
        partitions: usize,
        deadline: Deadline,
    ) -> anyhow::Result<Vec<i64>> {
        let partitions = i32::try_from(partitions)?;
        loop {
            let client = self.client.take();
            let asked = self.runtime.block_on(async {
                let mut client = match client {
                    Some(client) => client,
                    None => RawClient::connect(address).await?,
                };
                let offsets = group::committed(&mut client, group, topic, partitions).await?;
                anyhow::Ok((client, offsets))
            });
            match asked {
                Ok((client, offsets)) => {
                    self.client = Some(client);
                    return Ok(offsets);
                }
                Err(error) => deadline.check("committed offsets").context(error)?,
            }
            pause(LOOK_EVERY);
        }
    }
}
