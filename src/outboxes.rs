//! `tidegate recovery outbox`: output that waits for its publication, and what a person decides about a row that the broker
//! refuses for ever.

use std::fmt::Write;
use tidegate_recovery::outbox::{Decision, InspectedOutbox, StoredRow};
use tidegate_recovery::{RecoveryStore, StoreError};

/// What the command is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutboxCommand {
    /// Which outboxes wait.
    List,
    /// One row is not published, or goes elsewhere.
    Decide {
        /// The outbox, as the list and the error of the refused row name it.
        file: String,
        /// The row, counted from 0.
        row: u64,
        /// What becomes of it.
        decision: Decision,
    },
}

/// Does it and says what was done.
pub(crate) fn perform(store: &RecoveryStore, command: &OutboxCommand) -> Result<String, StoreError> {
    let waiting = store.outboxes()?;
    match command {
        OutboxCommand::List => Ok(list(&waiting)),
        OutboxCommand::Decide { file, row, decision } => {
            store.decide(file, *row, decision.clone())?;
            let outbox = waiting.iter().find(|waiting| waiting.file == *file);
            let described = match outbox {
                Some(waiting) => describe(store, waiting, *row)?,
                None => String::new(),
            };
            let outcome = match decision {
                Decision::Skip => "is not published".to_owned(),
                Decision::DeadLetter { topic } => format!("goes to the topic {topic}"),
            };
            Ok(format!("row {row} of {file}{described} {outcome}; the next start of the flow does so"))
        }
    }
}

fn list(waiting: &[InspectedOutbox]) -> String {
    if waiting.is_empty() {
        return "no output waits for its publication".to_owned();
    }
    let mut text = String::new();
    for InspectedOutbox { file, outbox, rows, decisions } in waiting {
        let rows = rows.map_or_else(|| "damaged".to_owned(), |rows| format!("{rows} rows"));
        let _ = write!(text, "{file}  epoch {}  slot {}  {rows}", outbox.epoch, outbox.slot);
        for (row, decision) in decisions {
            let _ = match decision {
                Decision::Skip => write!(text, "  row {row}: skipped"),
                Decision::DeadLetter { topic } => write!(text, "  row {row}: to {topic}"),
            };
        }
        text.push('\n');
    }
    text.push_str("markers on the control topic may cover some of them: the next start of the flow knows");
    text
}

/// What the row is, so that a wrong number is noticed.
fn describe(store: &RecoveryStore, waiting: &InspectedOutbox, wanted: u64) -> Result<String, StoreError> {
    const SHOWN_BYTES: usize = 80;
    let shown = |bytes: Option<&[u8]>| match bytes {
        None => "none".to_owned(),
        Some(bytes) => {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES)]).into_owned();
            let more = if bytes.len() > SHOWN_BYTES { "…" } else { "" };
            format!("{text:?}{more} ({} bytes)", bytes.len())
        }
    };
    let mut text = String::new();
    store.read_outbox(&waiting.outbox)?.visit(|StoredRow { number, destination, row, .. }| {
        if number == wanted {
            text = format!(
                " (sink {}, topic {}, key {}, value {})",
                destination.step,
                destination.topic,
                shown(row.key),
                shown(row.value)
            );
        }
        Ok::<(), StoreError>(())
    })?;
    Ok(text)
}
