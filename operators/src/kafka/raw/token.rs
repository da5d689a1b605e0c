//! Hands tokens to the library: see [`TokenSource`].

use super::super::token::{Token, TokenSource};
use super::client::{Client, Log, error_text, text_of};
use super::{Code, Properties};
use rdkafka::client::ClientContext;
use rdkafka_sys::bindings as sys;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{self, NonNull};

/// The property that says where tokens come from; without it a client logs in otherwise.
const SOURCE: &str = "sasl.oauthbearer.config";

/// Prepares a configuration for tokens, where its properties ask for them; returns whether they do.
///
/// # Safety
/// `configuration` is a valid configuration that no client has taken over, and its opaque pointer is null or a `Log`
/// that outlives the client.
pub(super) unsafe fn prepare(configuration: *mut sys::rd_kafka_conf_t, properties: &Properties) -> bool {
    let wanted = properties.contains_key(SOURCE);
    if wanted {
        // SAFETY: the caller's promise.
        unsafe {
            sys::rd_kafka_conf_set_oauthbearer_token_refresh_cb(configuration, Some(on_token_wanted));
            sys::rd_kafka_conf_enable_sasl_queue(configuration, 1);
        }
    }
    wanted
}

/// Lets a thread of the library's own ask for tokens: a worker's queues are served by nobody who may wait.
pub(super) fn ask_in_background(client: &Client) -> Result<(), String> {
    // SAFETY: a valid client; the error is null or ours.
    unsafe { error_text(sys::rd_kafka_sasl_background_callbacks_enable(client.pointer())) }
}

/// Gives its token to a client of the safe library that lives too short to need a second one.
pub(crate) fn give_token<C: ClientContext>(
    client: &rdkafka::client::Client<C>,
    properties: &Properties,
) -> Result<(), String> {
    let Some(source) = properties.get(SOURCE) else { return Ok(()) };
    let token = TokenSource::from_property(source)?.token()?;
    // SAFETY: the client is borrowed, so its handle is valid.
    unsafe { set(client.native_ptr(), &token) }
}

/// # Safety
/// `handle` is a valid client.
unsafe fn set(handle: *mut sys::rd_kafka_t, token: &Token) -> Result<(), String> {
    let text = |text: &str| CString::new(text).map_err(|_| "the token has a zero byte in it".to_owned());
    let (value, subject) = (text(&token.text)?, text(&token.subject)?);
    let mut error = [0 as c_char; 512];
    // SAFETY: the caller's promise, strings that end, no extensions, and a buffer with its length.
    let code = Code::from(unsafe {
        sys::rd_kafka_oauthbearer_set_token(
            handle,
            value.as_ptr(),
            token.expires_ms,
            subject.as_ptr(),
            ptr::null_mut(),
            0,
            error.as_mut_ptr(),
            error.len(),
        )
    });
    code.ok().map_err(|code| match code {
        // The library may quote what it does not like.
        Code::INVALID_ARG => {
            "the client does not take the token: it has ended, or has characters that no token has".to_owned()
        }
        _ => text_of(&error),
    })
}

unsafe extern "C" fn on_token_wanted(
    handle: *mut sys::rd_kafka_t,
    source: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: called on a thread of the library with a live client, the value of `SOURCE` as a string that ends, or
    // null, and the opaque pointer that `Client::new` set, which lives as long as the client.
    let (log, source) = unsafe {
        let source =
            NonNull::new(source.cast_mut()).map(|text| CStr::from_ptr(text.as_ptr()).to_string_lossy());
        (opaque.cast::<Log>().as_ref(), source.unwrap_or_default())
    };
    let outcome = TokenSource::from_property(&source)
        .and_then(|source| source.token())
        // SAFETY: as above.
        .and_then(|token| unsafe { set(handle, &token) });
    if let Some(log) = log {
        log.token(&outcome);
    }
    if let Err(reason) = outcome {
        // The library asks again after ten seconds.
        let reason = CString::new(reason).unwrap_or_default();
        // SAFETY: a live client and a string that ends.
        let code =
            Code::from(unsafe { sys::rd_kafka_oauthbearer_set_token_failure(handle, reason.as_ptr()) });
        if !code.is_ok() {
            tracing::debug!(error = ?code, "the client did not hear that there is no token");
        }
    }
}
