//! The calls that clients make: made-up visitors of shops.

use rand::RngExt;
use serde_json::{Value, json};

use crate::journal::Journal;

/// The number of shops, each a namespace.
pub const SHOPS: u32 = 3;
/// The number of items with votes in each shop.
pub const ITEMS: u32 = 50;
const PRODUCTS: u32 = 200;
const VISITORS: u32 = 5000;
const TODAY: &str = "2026-11-25";

/// A call of a client in a shop, and what it counts.
#[derive(Clone)]
pub struct Call {
    kind: &'static str,
    family: &'static str,
    method: &'static str,
    args: Vec<Value>,
    id: String,
    delta: i64,
}

impl Call {
    /// Returns a call of any kind.
    pub fn any(shop: u32) -> Self {
        match rand::rng().random_range(0..10) {
            0..5 => Self::view(shop),
            5..7 => Self::visit(shop),
            7..9 => Self::vote(shop),
            _ => Self::order(shop),
        }
    }

    fn view(shop: u32) -> Self {
        let id = format!("{shop}/product-{}", zipf(PRODUCTS));
        let args = vec![json!(id), json!(1)];
        Call {
            kind: "buffered",
            family: "views",
            method: "add",
            args,
            id,
            delta: 1,
        }
    }

    fn visit(shop: u32) -> Self {
        let visitor = format!("visitor-{}", rand::rng().random_range(0..VISITORS));
        let args = vec![json!(shop.to_string()), json!(TODAY), json!(visitor)];
        let id = format!("{shop}/{TODAY}");
        Call {
            kind: "visitors",
            family: "visitors",
            method: "first_visit",
            args,
            id,
            delta: 1,
        }
    }

    fn vote(shop: u32) -> Self {
        let id = format!("{shop}/{}", zipf(ITEMS));
        let delta = if rand::rng().random_bool(0.75) { 1 } else { -1 };
        let args = vec![json!(id), json!(delta)];
        Call {
            kind: "cached",
            family: "votes",
            method: "incr",
            args,
            id,
            delta,
        }
    }

    /// Returns a job's hit, which is counted once however often it is sent with its epoch.
    pub fn order(shop: u32) -> Self {
        let request = format!("order-{:016x}", rand::rng().random::<u64>());
        let call = Self::view(shop);
        let args = vec![json!(request), json!(call.id), json!(1)];
        Call {
            method: "add_once",
            args,
            ..call
        }
    }

    /// Returns the call that asks for the epoch of an order.
    pub fn epoch(&self) -> Value {
        json!({"kind": self.kind, "family": self.family, "call": "request_epoch", "args": self.args[..2]})
    }

    /// Sets the epoch of an order.
    pub fn since(&mut self, epoch: Value) {
        self.args.truncate(3);
        self.args.push(epoch);
    }

    pub fn line(&self) -> Value {
        json!({"kind": self.kind, "family": self.family, "call": self.method, "args": self.args})
    }

    /// Writes what came of the call into the journal.
    pub fn settle(&self, shop: u32, reply: &Value, journal: &mut Journal) {
        match reply["error"].as_str() {
            None if self.method == "first_visit" && reply["returns"] == false => {}
            None => journal.count(
                &format!("shop-{shop}/{}", self.family),
                &self.id,
                self.delta,
            ),
            Some("outcome_unknown") => journal.unknown += 1,
            Some(_) => journal.refused += 1,
        }
    }
}

/// Draws 1 most often, n about 1/n as often.
fn zipf(places: u32) -> u32 {
    f64::from(places).powf(rand::random()) as u32
}
