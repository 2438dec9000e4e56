//! CSIStorageCapacity.

use crate::object::{Kind, Meta, Projection, kinds};
use crate::quantity::Quantity;
use crate::selector::LabelSelector;

projection! {
    /// How much room a driver has for volumes of one class in one place.
    pub struct StorageCapacity {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// The class.
        pub storage_class_name: String,
        /// The nodes that can reach the place; absent means none.
        pub node_topology: Option<LabelSelector>,
        /// All the room there is; absent means that nobody knows.
        pub capacity: Option<Quantity>,
        /// The largest volume that can be made.
        pub maximum_volume_size: Option<Quantity>,
    }
}

impl Projection for StorageCapacity {
    const KIND: Kind = kinds::STORAGE_CAPACITY;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl StorageCapacity {
    /// The size up to which a volume may be expected to fit, if that is known.
    pub fn limit(&self) -> Option<Quantity> {
        self.maximum_volume_size.or(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_largest_volume_counts_before_all_the_room_there_is() {
        let read = |object| serde_json::from_value::<StorageCapacity>(object).unwrap().limit();
        let limit = |text: &str| Some(text.parse::<Quantity>().unwrap());
        assert_eq!(read(json!({ "capacity": "10Gi", "maximumVolumeSize": "2Gi" })), limit("2Gi"));
        assert_eq!(read(json!({ "capacity": "10Gi" })), limit("10Gi"));
        assert_eq!(read(json!({ "maximumVolumeSize": "2Gi" })), limit("2Gi"));
        assert_eq!(read(json!({ "storageClassName": "fast" })), None);
    }
}
