//! Two shapes that every projection is made of.

/// Declares structs that read Kubernetes JSON as Go does: camel case, anything may be absent or `null`,
/// unknown fields are ignored.
macro_rules! projection {
    ($(
        $(#[$outer:meta])*
        pub struct $name:ident {
            $( $(#[$inner:meta])* pub $field:ident: $type:ty, )*
        }
    )+) => { $(
        $(#[$outer])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $(
                $(#[$inner])*
                #[serde(deserialize_with = "crate::object::or_default")]
                pub $field: $type,
            )*
        }
    )+ };
}

/// Declares an enum of Kubernetes strings. A value newer than this code becomes `Unknown`, so that one odd
/// field never makes an object unreadable.
macro_rules! text_enum {
    (
        $(#[$outer:meta])*
        pub enum $name:ident {
            $( $(#[$inner:meta])* $variant:ident = $text:literal, )+
        }
    ) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub enum $name {
            $( $(#[$inner])* $variant, )+
            /// A value this version does not know.
            Unknown,
        }

        impl $name {
            /// The value as Kubernetes writes it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( Self::$variant => $text, )+
                    Self::Unknown => "Unknown",
                }
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $( $text => Self::$variant, )+
                    _ => Self::Unknown,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Ok(if text.is_empty() { Self::default() } else { Self::from(text.as_ref()) })
            }
        }
    };
}
