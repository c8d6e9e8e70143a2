//! The deterministic simulation: the real services over simulated time, volume and network.
//!
//! [`scenario::run`] plays one seed. Brokers come up as in production (`gateway::boot`) and are
//! cut at the decoded request; everything outside them is simulated: time and tasks
//! (`executor`), the disk (`disk`), the network (`net`), and, for half of the seeds, the log
//! store (`store`). `history` judges what clients see while they see it, `check` the rest.
//!
//! Some seeds have two brokers on one volume (`scenario::pair`): a third party writes the
//! assignment and moves partitions, transactional ids and groups between them; what one broker
//! asks of the other goes through `peers`, what it owes it through the marker queue on the volume.

mod admin;
mod check;
mod clients;
mod disk;
pub mod executor;
mod groups;
mod history;
mod http;
mod instance;
mod net;
mod owners;
mod peers;
mod plan;
mod producer;
mod reader;
pub mod scenario;
mod store;
mod txns;
