//! A start on a full disk: it waits, says so, and goes on by itself when there is space.
//!
//! Nothing is read before it is owned, and owning is written: without space for that a broker can
//! serve nothing (docs/decisions/0006-a-start-on-a-full-disk-waits.md). Meanwhile `/readyz` says
//! what there is no space for, and clients are turned away, so that they come again.

use std::net::TcpListener;

use admin_api::Token;
use futures_util::future::join_all;
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::volume::SpaceWatch;
use tokio_util::sync::CancellationToken;

use crate::admin;
use crate::boot::{BootError, Running};
use crate::server::Listener;

/// What is there before the broker is.
#[derive(Debug)]
pub(crate) struct Starting<'a> {
    pub(crate) env: &'a Env,
    pub(crate) space: &'a SpaceWatch,
    pub(crate) sockets: &'a [Listener],
    pub(crate) admin: &'a TcpListener,
    /// What opens the admin port, if something does.
    pub(crate) token: Option<&'a Token>,
}

impl Starting<'_> {
    /// Starts a broker, as often as it takes until there is space for it.
    pub(crate) async fn until_started(
        &self,
        start: impl Fn() -> BoxFuture<'static, Result<Running, BootError>>,
    ) -> Result<Running, BootError> {
        loop {
            match start().await {
                Err(error) => match error.no_space() {
                    Some(path) => self.wait_for_space(path).await,
                    None => return Err(error),
                },
                started => return started,
            }
        }
    }

    async fn wait_for_space(&self, path: &str) {
        let mut changes = self.space.changes();
        if !self.space.is_full() {
            // It was not the volume that said so.
            self.space.refused(path);
        }
        let admin = self.admin.local_addr();
        let admin = admin.map_or_else(|error| error.to_string(), |address| address.to_string());
        tracing::error!(
            path,
            admin,
            "the broker can't start without space: it waits for some"
        );
        let why = format!("no space left for {path}; the broker starts when there is some");
        let stop = CancellationToken::new();
        // Also when the start is given up meanwhile.
        let stopped = stop.clone().drop_guard();
        let admin = self.admin.try_clone();
        let token = self.token.cloned();
        let serve = |listener| admin::serve_starting(self.env, listener, why, token, stop);
        let admin = admin.map(serve);
        let sockets = self.sockets.iter();
        let turned_away = sockets.map(|socket| socket.turn_away(&*self.env.clock));
        tokio::select! {
            // The sender lives as long as the watch.
            _ = changes.wait_for(|full| !*full) => {}
            _ = join_all(turned_away) => {}
        }
        drop(stopped);
        match admin {
            Ok(ended) => ended.await,
            Err(error) => tracing::warn!(%error, "the admin port was not served meanwhile"),
        }
    }
}
