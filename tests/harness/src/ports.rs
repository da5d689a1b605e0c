//! Free ports on 127.0.0.1.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Mutex;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A port on 127.0.0.1 that nobody listens on and that this process did not hand out before.
///
/// It lies below the range from which Linux takes the ports of outgoing connections (32768 and up), so that
/// no connection can take it between now and the moment its owner binds it.
pub fn free() -> u16 {
    let mut given = GIVEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let given = given.get_or_insert_with(HashSet::new);
    let mut random = SmallRng::from_os_rng();
    for _ in 0..10_000 {
        let port = random.random_range(15_000..32_000);
        if !given.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            given.insert(port);
            return port;
        }
    }
    panic!("found no free port between 15000 and 32000 on 127.0.0.1");
}

/// `127.0.0.1:PORT` with a free port.
pub fn free_address() -> String {
    format!("127.0.0.1:{}", free())
}
