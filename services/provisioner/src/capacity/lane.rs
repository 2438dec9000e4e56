//! The lane as a controller: its state, its life, and what wakes its keys.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;

use stowage_csi::v1::controller_service_capability::rpc::Type as ControllerCapability;
use stowage_model::class::StorageClass;
use stowage_model::csi_node::CsiNode;
use stowage_model::labels::{CAPACITY_DRIVER, CAPACITY_MANAGER};
use stowage_model::node::Node;
use stowage_model::object::Key as ObjectKey;
use stowage_model::storage_capacity::StorageCapacity;
use stowage_model::topology::{self, Segments};
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::caller::Caller;
use stowage_runtime::driver::Driver;
use stowage_runtime::engine::{self, Error, Reserved, Setup, Watches};
use stowage_runtime::queue::Queue;
use stowage_runtime::watch::Scope;
use stowage_runtime::{Context, Stop};

use super::book::Book;
use super::decide::{self, Action, Decision, ItemSnapshot, Snapshot, Why, is_published};
use super::item::Item;
use super::metrics::Metrics;
use super::owner::Owner;
use super::signals::Signals;
use crate::facts::Facts;
use crate::options::Capacity;

const BY_ITEM: &str = "item";

/// What is decided on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Item(Item),
    /// An object that speaks of no item.
    Stray(ObjectKey),
}

/// What the lane gets from the claims' side.
pub struct Parts {
    pub facts: Arc<Facts>,
    pub driver: Driver,
    /// Filled by the claims' side. The last two only where places are not known from the start.
    pub classes: Cache<StorageClass>,
    pub nodes: Cache<Node>,
    pub csi_nodes: Cache<CsiNode>,
    pub signals: Signals,
}

/// What is known on both sides: whoever changes a view, or takes room, finds and wakes items here.
pub struct Shared {
    facts: Arc<Facts>,
    options: Capacity,
    classes: Cache<StorageClass>,
    nodes: Cache<Node>,
    csi_nodes: Cache<CsiNode>,
    book: Mutex<Book>,
    queue: Queue<Key>,
}

pub struct Lane {
    pub shared: Arc<Shared>,
    pub capacities: Cache<StorageCapacity>,
    pub caller: Caller,
    pub owner: Option<Arc<Owner>>,
    pub labels: Labels,
}

/// Whose objects these are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    pub driver: String,
    pub managed_by: String,
}

/// Publishes until asked to stop.
pub async fn serve(context: Context, parts: Parts, options: Capacity) -> Result<(), Stop> {
    let (threads, backoff) = (options.threads, parts.facts.options.driver.retry);
    let lane = async move |setup: &Setup<Key>| Lane::new(setup, parts, options).await;
    match engine::serve_with(context, threads, backoff, lane).await {
        // Nothing depends on a question that was still open.
        Err(Stop::Undrained { .. }) => Ok(()),
        ended => ended,
    }
}

impl Lane {
    pub async fn new(setup: &Setup<Key>, parts: Parts, options: Capacity) -> Result<Self, Stop> {
        let Parts { facts, driver, classes, nodes, csi_nodes, signals } = parts;
        let context = &setup.context;
        if !driver.controller.contains(&ControllerCapability::GetCapacity) {
            tracing::warn!(
                driver = driver.name,
                "--enable-capacity: the driver does not announce GET_CAPACITY; it is asked all the same"
            );
        }
        let owner = match &options.owner {
            Some(level) => Some(Arc::new(Owner::find(&context.api, &options.namespace, level).await?)),
            None => None,
        };
        let labels = Labels::of(&facts);
        let caller = driver.caller(context.clone(), facts.options.driver.timeout);
        let (book, queue) = (Mutex::default(), setup.queue.clone());
        let shared = Arc::new(Shared { facts, options, classes, nodes, csi_nodes, book, queue });
        shared.subscribe();
        shared.look_around().await;
        signals.begin(&shared);
        let capacities = Cache::indexed(&[(BY_ITEM, |object| Item::of(object).iter().map(Item::to_string).collect())]);
        let lane = Self { shared, capacities, caller, owner, labels };
        lane.measure(context);
        Ok(lane)
    }

    pub fn namespace(&self) -> &str {
        &self.shared.options.namespace
    }

    /// The gauges are counted when somebody looks.
    fn measure(&self, context: &Context) {
        let metrics = context.metrics.own(Metrics::register);
        let (shared, capacities) = (Arc::downgrade(&self.shared), self.capacities.clone());
        context.metrics.before_encoding(move || {
            let Some(shared) = shared.upgrade() else { return false };
            let goal = shared.items();
            let published: Vec<_> = capacities.list().iter().map(|object| Item::of(object)).collect();
            let is_wanted = |item: &&Option<Item>| item.as_ref().is_some_and(|item| goal.contains(item));
            let current: BTreeSet<_> = published.iter().filter(is_wanted).collect();
            let obsolete = published.iter().filter(|item| !is_wanted(item)).count();
            for (gauge, count) in
                [(&metrics.goal, goal.len()), (&metrics.current, current.len()), (&metrics.obsolete, obsolete)]
            {
                gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            true
        });
    }
}

impl Labels {
    /// As the original's: either takes over what the other published.
    fn of(facts: &Facts) -> Self {
        const US: &str = "external-provisioner";
        let managed_by = facts.node.as_ref().map_or_else(|| US.to_owned(), |node| joined(US, &node.name));
        Self { driver: facts.driver.clone(), managed_by }
    }
}

/// Values of labels are at most this long.
const MAX_LABEL: usize = 63;

/// Both parts with a dash in between; the first, or both, are shortened by a hash if that is too long.
fn joined(first: &str, second: &str) -> String {
    let whole = format!("{first}-{second}");
    if whole.len() <= MAX_LABEL {
        return whole;
    }
    match MAX_LABEL.checked_sub(10 + second.len()).filter(|left| *left > 0) {
        Some(left) => format!("{}-{:08x}-{second}", &first[..left.min(first.len())], hash(first)),
        None => format!("{}-{:08x}", &first[..first.len().min(MAX_LABEL - 9)], hash(&whole)),
    }
}

/// FNV-1a, 32 bits.
fn hash(text: &str) -> u32 {
    text.bytes().fold(2_166_136_261, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

impl Shared {
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no code panics while holding the book")
    }

    pub fn wake(&self, item: Item) {
        self.queue.add(Key::Item(item));
    }

    /// Classes whose capacity is published.
    fn classes(&self) -> Vec<Arc<str>> {
        let classes = self.classes.list().into_iter().filter(|class| self.publishes(class));
        classes.map(|class| class.meta.name.as_str().into()).collect()
    }

    fn publishes(&self, class: &StorageClass) -> bool {
        is_published(class, &self.facts.driver, self.options.immediate_binding)
    }

    fn items(&self) -> BTreeSet<Item> {
        let classes = self.classes();
        self.book().items(&classes)
    }

    /// Weak, because the views are part of what they would hold.
    fn subscribe(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        self.classes.on_change(move |change| {
            if let Some(shared) = shared.upgrade() {
                shared.class_changed(change);
            }
        });
        if self.facts.node.is_some() {
            return;
        }
        let shared = Arc::downgrade(self);
        self.nodes.on_change(move |change| {
            // Heartbeats change everything but the labels.
            let labels = |node: Option<&Arc<Node>>| node.map(|node| node.meta.labels.clone());
            if let Some(shared) = shared.upgrade().filter(|_| labels(change.before) != labels(change.after)) {
                shared.node_changed(&change.key.name);
            }
        });
        let shared = Arc::downgrade(self);
        self.csi_nodes.on_change(move |change| {
            if let Some(shared) = shared.upgrade() {
                shared.node_changed(&change.key.name);
            }
        });
    }

    /// Waits for the views, and learns the places.
    async fn look_around(&self) {
        self.classes.synced().await;
        if let Some(node) = &self.facts.node {
            self.book().set_place(&node.name, Some(node.segments.clone()));
            return;
        }
        self.csi_nodes.synced().await;
        self.nodes.synced().await;
        for node in self.csi_nodes.keys() {
            let place = self.place_of(&node.name);
            self.book().set_place(&node.name, place);
        }
    }

    /// Where the node is for the driver; nowhere if that is not registered there, or the node has not all labels yet.
    fn place_of(&self, node: &str) -> Option<Segments> {
        let key = ObjectKey::cluster(node);
        let csi_node = self.csi_nodes.get(&key)?;
        let keys = &csi_node.driver(&self.facts.driver)?.topology_keys;
        let node = self.nodes.get(&key)?;
        if keys.is_empty() { Some(Segments::new()) } else { topology::of_node(&node, keys).ok() }
    }

    fn node_changed(&self, node: &str) {
        let place = self.place_of(node);
        let changed = self.book().set_place(node, place);
        if changed.is_empty() {
            return;
        }
        let classes = self.classes();
        for place in changed {
            classes.iter().for_each(|class| self.wake(Item { place: Arc::clone(&place), class: Arc::clone(class) }));
        }
    }

    fn class_changed(&self, change: &Change<'_, StorageClass>) {
        if !change.both().any(|class| class.provisioner == self.facts.driver) {
            return;
        }
        let asked = |class: Option<&Arc<StorageClass>>| class.map(|class| class.parameters.clone());
        if asked(change.before) != asked(change.after) {
            self.book().forget_class(&change.key.name);
        }
        let places = self.book().places();
        places.iter().for_each(|place| self.wake(Item::new(place, &change.key.name)));
    }
}

impl engine::Controller for Lane {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "provisioner-capacity";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        let Labels { driver, managed_by } = &self.labels;
        let scope = Scope {
            namespace: self.shared.options.namespace.clone(),
            label_selector: format!("{CAPACITY_DRIVER}={driver},{CAPACITY_MANAGER}={managed_by}"),
            ..Scope::all()
        };
        watches.cache(&self.capacities, scope, |_, change| change.both().map(key_of).collect::<BTreeSet<_>>());
    }

    fn gather(&self, key: &Key, _reserved: &Reserved, _now: Timestamp) -> Snapshot {
        let item = match key {
            Key::Item(item) => item,
            Key::Stray(key) => return Snapshot::Stray(self.capacities.get(key)),
        };
        let shared = &self.shared;
        let class = shared.classes.get(&ObjectKey::cluster(&*item.class)).filter(|class| shared.publishes(class));
        let class = class.filter(|_| shared.book().has_place(&item.place));
        Snapshot::Item(Box::new(ItemSnapshot {
            item: item.clone(),
            class,
            objects: self.capacities.by_index(BY_ITEM, &item.to_string()),
            seen: shared.book().seen(item),
            owner: self.owner.clone(),
            poll_interval: shared.options.poll_interval,
        }))
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
        decide::decide(snapshot, now)
    }

    fn note(&self, key: &Key, _snapshot: &Snapshot, decision: &Decision, _now: Timestamp) {
        if let (Key::Item(item), Why::Unwanted) = (key, &decision.why) {
            self.shared.book().forget(item);
        }
    }

    async fn apply(self: Arc<Self>, _key: Key, action: Action) -> Result<(), Error> {
        self.carry_out(action).await
    }

    fn queue_name(_key: &Key) -> &'static str {
        "csistoragecapacity"
    }

    fn keys(&self) -> Vec<Key> {
        let published = self.capacities.list();
        let wanted = self.shared.items().into_iter().map(Key::Item);
        wanted.chain(published.iter().map(|object| key_of(object))).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn begin(&self) {
        self.keys().into_iter().for_each(|key| self.shared.queue.add(key));
    }
}

fn key_of(object: &StorageCapacity) -> Key {
    Item::of(object).map_or_else(|| Key::Stray(object.meta.key()), Key::Item)
}

#[cfg(test)]
mod tests {
    use super::joined;

    /// As Go's `getNameWithMaxLength` has them.
    #[test]
    fn the_label_of_a_node_is_shortened_as_the_original_does() {
        for (node, label) in [
            ("n1".to_owned(), "external-provisioner-n1".to_owned()),
            ("a".repeat(42), format!("external-provisioner-{}", "a".repeat(42))),
            ("a".repeat(43), format!("external-p-53f40b57-{}", "a".repeat(43))),
            ("b".repeat(52), format!("e-53f40b57-{}", "b".repeat(52))),
            ("d".repeat(80), "external-provisioner-a5f34b0e".to_owned()),
        ] {
            assert_eq!(joined("external-provisioner", &node), label);
        }
    }
}
