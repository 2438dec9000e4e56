//! CSINode.

use crate::object::{Kind, Meta, Projection, kinds};

projection! {
    /// The CSI drivers of a node.
    pub struct CsiNode {
        /// Metadata; the name is the node's.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// The drivers.
        pub spec: CsiNodeSpec,
    }

    /// The drivers registered on a node.
    pub struct CsiNodeSpec {
        /// The drivers.
        pub drivers: Vec<CsiNodeDriver>,
    }

    /// One driver on one node.
    pub struct CsiNodeDriver {
        /// The driver's name.
        pub name: String,
        /// The driver's own id of the node.
        #[serde(rename = "nodeID")]
        pub node_id: String,
        /// The keys that say where the node is, for this driver.
        pub topology_keys: Vec<String>,
        /// How much the node can take.
        pub allocatable: Option<Allocatable>,
    }

    /// How much of a driver's volumes a node can take.
    pub struct Allocatable {
        /// The most volumes; absent means no limit.
        pub count: Option<i32>,
    }
}

impl Projection for CsiNode {
    const KIND: Kind = kinds::CSI_NODE;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl CsiNode {
    /// The driver of that name, if it is registered.
    pub fn driver(&self, name: &str) -> Option<&CsiNodeDriver> {
        self.spec.drivers.iter().find(|driver| driver.name == name)
    }

    /// The driver's id of the node, once the driver has registered there.
    pub fn node_id(&self, driver: &str) -> Option<&str> {
        self.driver(driver).map(|driver| driver.node_id.as_str()).filter(|id| !id.is_empty())
    }

    /// The most volumes of the driver the node can take, if there is a limit.
    pub fn limit(&self, driver: &str) -> Option<u32> {
        let count = self.driver(driver)?.allocatable.as_ref()?.count?;
        u32::try_from(count).ok()
    }
}
