//! Parts of the product, measured by themselves: what `tidegate-bench run` starts. Each prints the seconds of its work.
//!
//! They are a program of their own because they run with the product's allocator, and the raw loops, which are what anybody
//! would write, with the system's.

mod scaling;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
// Brings the allocator.
use tidegate as _;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures a part of Tidegate by itself.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// One task over a recovery store.
    Store(store::StoreArgs),
    /// A count per key over an in-memory source.
    Scaling(scaling::ScalingArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().part {
        Part::Store(args) => store::run(&args),
        Part::Scaling(args) => scaling::run(&args),
    };
    match outcome {
        Ok(seconds) => {
            #[expect(clippy::print_stdout, reason = "the figure is this program's output")]
            {
                println!("{seconds}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench-parts: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A figure beside a wrong result would be worth nothing.
fn expect(what: &str, expected: u64, found: u64) -> Result<()> {
    if expected == found { Ok(()) } else { Err(format!("{what}: {found}, and not {expected}").into()) }
}
