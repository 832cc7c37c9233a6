//! The AutoManager driver: settings, connection, callbacks around the policy core (LIFE, CALLB, TIME,
//! CONF).
//!
//! [`AutoManager::run`] checks the settings, connects to the Manager and starts one loop. The loop
//! takes one input at a time, gives it with the time to [`greenroom_policy::Policy`] and performs
//! what comes back, in order: calls on the Manager without waiting for their replies, callbacks,
//! answers. It decides nothing, so that the simulator, which has another driver, behaves alike.
//!
//! An instance is for one connection: when its stream ends it winds down and its handle settles; it
//! never reconnects (LIFE-07). [`supervise`] runs a fresh one then, and [`supervise_seated`] does so
//! only while no other control plane acts (ACTIVE).
//!
//! See `examples/embed.rs` for a whole program.

mod absent;
mod acts;
mod callbacks;
mod checks;
mod clock;
mod driver;
mod error;
mod getters;
mod handle;
mod line;
mod listen;
mod outbox;
mod record;
mod run;
mod said;
mod seat;
mod settings;
mod supervise;
mod unconfigured;

pub use callbacks::{CallbackResult, Callbacks, NoCallbacks, Rejection, Spot, callback_name};
pub use checks::Checks;
pub use clock::{Clock, SystemClock};
pub use error::{CallError, EndError, RunError};
pub use greenroom_policy as policy;
pub use greenroom_types as types;
pub use handle::{Answer, AutoManager, InstancePhase};
pub use listen::{CallbackStream, Heard};
pub use record::Recording;
pub use run::RunHandle;
pub use seat::{Holder, Seat, SeatSettings};
pub use settings::Settings;
pub use supervise::{Current, Supervisor, supervise, supervise_seated};
