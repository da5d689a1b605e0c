//! [`Admin`]: questions about the cluster itself, and making topics.
//!
//! These calls wait: they belong to the start of a process, or to a thread of their own.

use super::config::Connection;
use super::raw::give_token;
use super::reaper;
use crate::fault::Fault;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tidegate_recovery::ErrorClass;

/// How long settings are waited for without which the run is right as well: some brokers never tell them.
pub(super) const SETTINGS_WITHIN: Duration = Duration::from_secs(2);

/// Asks the brokers; every question has an answer or a fault by its deadline.
pub(super) struct Admin {
    client: Option<AdminClient<DefaultClientContext>>,
    brokers: String,
    end: Instant,
}

impl Admin {
    pub(super) fn new(connection: &Connection, end: Instant) -> Result<Admin, Fault> {
        let fault =
            |error: String| Fault::new(ErrorClass::Config, format!("the kafka admin client: {error}"));
        let mut config = ClientConfig::new();
        let properties = connection.admin_properties();
        for (name, value) in &properties {
            config.set(name, value);
        }
        let client: AdminClient<DefaultClientContext> =
            config.create().map_err(|error| fault(error.to_string()))?;
        give_token(client.inner(), &properties).map_err(fault)?;
        Ok(Admin { client: Some(client), brokers: connection.brokers.join(","), end })
    }

    pub(super) fn client(&self) -> &AdminClient<DefaultClientContext> {
        self.client.as_ref().expect("the client is there until the admin is dropped")
    }

    pub(super) fn options(&self) -> AdminOptions {
        let left = self.end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        AdminOptions::new().request_timeout(Some(left)).operation_timeout(Some(left))
    }

    pub(super) fn unavailable(&self, what: &str, error: &str) -> Fault {
        Fault::new(
            ErrorClass::Unavailable,
            format!("kafka at {} did not answer in time for {what} ({error})", self.brokers),
        )
    }

    /// The settings of each; `None` where this client may not see them.
    pub(super) fn configs(
        &self,
        asked: &[ResourceSpecifier<'_>],
        options: &AdminOptions,
    ) -> Result<Vec<Option<ConfigResource>>, Fault> {
        let answer = block_on(self.client().describe_configs(asked, options))
            .map_err(|error| self.unavailable("the settings", &error.to_string()))?;
        Ok(answer
            .into_iter()
            .map(|result| result.inspect_err(|error| tracing::debug!(%error, "settings were not told")).ok())
            .collect())
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        let client = self.client.take();
        reaper::close("admin client".to_owned(), move || drop(client));
    }
}

/// Runs a request on this thread; the library answers every request itself when its time is over.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
