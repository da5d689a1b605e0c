//! Free ports on 127.0.0.1.

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::sync::Mutex;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

/// The ports that this process has handed out, each with what keeps other test processes from it.
static GIVEN: Mutex<Option<HashMap<u16, File>>> = Mutex::new(None);

/// A port on 127.0.0.1 that nobody listens on and that no test process handed out before, as long as that lives.
///
/// It lies below the range from which Linux takes the ports of outgoing connections (32768 and up), so that
/// no connection can take it between now and the moment its owner binds it.
pub fn free() -> u16 {
    let mut given = GIVEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let given = given.get_or_insert_with(HashMap::new);
    let mut random = SmallRng::from_os_rng();
    for _ in 0..10_000 {
        let port = random.random_range(15_000..32_000);
        if given.contains_key(&port) || TcpListener::bind(("127.0.0.1", port)).is_err() {
            continue;
        }
        if let Some(claim) = claim(port) {
            given.insert(port, claim);
            return port;
        }
    }
    panic!("found no free port between 15000 and 32000 on 127.0.0.1");
}

/// Takes the port's lock among all test processes of this machine; it goes with the process.
fn claim(port: u16) -> Option<File> {
    let folder = std::env::temp_dir().join("tidegate-test-ports");
    let opened = fs::create_dir_all(&folder).and_then(|()| File::create(folder.join(port.to_string())));
    let file = opened.unwrap_or_else(|error| panic!("claim a port in {}: {error}", folder.display()));
    file.try_lock().is_ok().then_some(file)
}

/// `127.0.0.1:PORT` with a free port.
pub fn free_address() -> String {
    format!("127.0.0.1:{}", free())
}
