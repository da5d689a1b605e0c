//! The process side of the harness, shown with a shell script in the place of the runtime.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tidegate_harness::{Launch, Scratch, process};

const DEADLINE: Duration = Duration::from_secs(20);

/// A "runtime" that ends with 0 on SIGTERM, and with 3 when it finds `until-end` among its arguments.
fn script(scratch: &Scratch) -> String {
    let text = "#!/bin/sh\necho \"$@\" >&2\ntrap 'exit 0' TERM\ncase \"$*\" in *until-end*) echo out; exit 3;; esac\n\
                echo ready >&2\nwhile :; do sleep 0.05; done\n";
    let path = scratch.write("runtime", text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
        .unwrap_or_else(|e| panic!("make {} executable: {e}", path.display()));
    path.display().to_string()
}

#[test]
fn a_cluster_is_started_with_its_addresses_signalled_and_its_exit_codes_are_told_apart() {
    let scratch = Scratch::new("cluster");
    let launch =
        Launch::new(&script(&scratch), &scratch, "flow: x\n").shape(3, 2).recovery(&scratch.join("store"));
    let mut cluster = launch.start();
    for n in 0..3 {
        cluster.wait_logged(n, "ready", DEADLINE);
        let stderr = cluster.stderr(n);
        for part in [&format!("-i {n}"), "-w 2", &cluster.addresses().join(";"), "/store", "flow-"] {
            assert!(stderr.contains(part), "{part} is not in {stderr}");
        }
        assert_eq!(cluster.status(n), None, "nobody serves HTTP here");
    }
    cluster.kill(0);
    cluster.terminate(1);
    cluster.freeze(2);
    assert_eq!(cluster.wait_exit(1, DEADLINE), 0);
    cluster.terminate(2);
    tidegate_harness::wait::holds_for("a frozen process does not end", Duration::from_millis(200), || {
        cluster.exited(2).is_none()
    });
    cluster.thaw(2);
    assert_eq!(cluster.wait_exit(2, DEADLINE), 0);
    assert_eq!(cluster.exits(), vec![Some(137), Some(0), Some(0)]);
    cluster.assert_stdout_empty();
}

#[test]
fn a_dropped_cluster_leaves_no_process_and_stdout_is_not_overlooked() {
    let scratch = Scratch::new("dropped");
    let launch = Launch::new(&script(&scratch), &scratch, "flow: x\n");
    let mut cluster = launch.start();
    cluster.wait_logged(0, "ready", DEADLINE);
    let pid = cluster.pid(0);
    drop(cluster);
    assert!(!process::exists(pid), "process {pid} lives on");
    let ended = launch.until_end().run_to_exit(3, DEADLINE);
    let complaint = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ended.assert_stdout_empty()));
    assert!(complaint.is_err(), "I12 was not noticed");
}
