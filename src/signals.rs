//! Signals: the first SIGTERM, SIGINT or SIGHUP asks for a stop, the second ends the process at once.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;

/// Starts the thread that listens. `stop` is called for the first signal, with its name; the second signal
/// ends the process with 128 plus its number (130, 143), as a shell would report it.
pub(crate) fn listen(stop: impl Fn(&'static str) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut asked = false;
        for signal in signals.forever() {
            let name = match signal {
                SIGTERM => "SIGTERM",
                SIGINT => "SIGINT",
                _ => "SIGHUP",
            };
            if asked {
                tracing::warn!(signal = name, "second signal: ending at once, without a last commit");
                signal_hook::low_level::exit(128 + signal);
            }
            asked = true;
            tracing::info!(signal = name, "stopping: the open epoch is finished, saved and committed first");
            stop(name);
        }
    })?;
    Ok(())
}
