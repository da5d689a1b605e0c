//! The `tidegate` command.

use std::process::ExitCode;
use tidegate::cli::{self, Config, Parsed};
use tidegate::config::layers::Environment;

fn main() -> ExitCode {
    match cli::parse(std::env::args_os()) {
        Parsed::Exit(code) => code,
        Parsed::Do(Config::Check(check)) => tidegate::check::run(&check, &Environment::of_process()),
        Parsed::Do(_) => {
            eprintln!("not assembled yet");
            ExitCode::from(70)
        }
    }
}
