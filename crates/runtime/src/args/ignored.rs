//! Flags of the originals that are accepted without effect, and the sentence each is worth when it is set.

use stowage_process::args::{ALL_ALPHA, ALL_BETA, FeatureArgs};

/// Declares flags that are accepted without effect: each with its type, the original's default and why it means nothing
/// here. `sentences` names those that are set to anything else.
///
/// ```
/// stowage_runtime::ignored_flags! {
///     struct Ignored {
///         max_entries: u32 = "0", "what the driver lists is not asked for";
///     }
/// }
/// #[derive(clap::Parser)]
/// struct Args {
///     #[command(flatten)]
///     ignored: Ignored,
/// }
/// let ignored = |line: &str| <Args as clap::Parser>::parse_from(line.split(' ')).ignored.sentences();
/// assert!(ignored("sidecar --max-entries=0").is_empty());
/// assert_eq!(
///     ignored("sidecar --max-entries=9"),
///     ["--max-entries has no effect: what the driver lists is not asked for"]
/// );
/// ```
#[macro_export]
macro_rules! ignored_flags {
    ($(#[$meta:meta])* struct $name:ident { $( $field:ident: $type:ty = $default:literal, $why:literal; )* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, clap::Args)]
        struct $name {
            $(
                #[doc = concat!("Accepted for compatibility: ", $why)]
                #[arg(long, default_value = $default, allow_negative_numbers = true, hide = true)]
                $field: $type,
            )*
        }

        impl $name {
            /// What was asked for in vain, one sentence each.
            fn sentences(&self) -> Vec<String> {
                let flags = [$( (stringify!($field), $default.parse().ok() != Some(self.$field.clone()), $why), )*];
                let set = flags.into_iter().filter(|(_, set, _)| *set);
                set.map(|(field, _, why)| format!("--{} has no effect: {why}", field.replace('_', "-"))).collect()
            }
        }
    };
}

/// The feature gates that are set and known to nobody here, one sentence each.
pub fn unknown_gates(features: &FeatureArgs, known: &[&str]) -> Vec<String> {
    let is_known = |gate: &&str| known.contains(gate) || [ALL_ALPHA, ALL_BETA].contains(gate);
    let gates = features.gates().map(|(gate, _)| gate).filter(|gate| !is_known(gate));
    gates.map(|gate| format!("--feature-gates {gate} has no effect: there is no such gate here")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gates_that_nobody_knows_are_named() {
        let features = FeatureArgs::of(&["AllBeta", "AllAlpha", "Known", "Other"].map(|gate| (gate, true)));
        let said = ["--feature-gates Other has no effect: there is no such gate here"];
        assert_eq!(unknown_gates(&features, &["Known"]), said);
    }
}
