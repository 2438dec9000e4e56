//! Which of upstream's controllers run, as kube-controller-manager's `--controllers` says it.

use anyhow::bail;

/// One switch per controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controllers {
    pub binder: bool,
    pub claim_protection: bool,
    pub volume_protection: bool,
    pub attributes_class_protection: bool,
    pub ephemeral: bool,
    pub expander: bool,
}

/// Canonical name, alias of old: the same where there never was another.
const NAMES: [(&str, &str); 6] = [
    ("persistentvolume-binder-controller", "persistentvolume-binder"),
    ("persistentvolumeclaim-protection-controller", "pvc-protection"),
    ("persistentvolume-protection-controller", "pv-protection"),
    ("volumeattributesclass-protection-controller", "volumeattributesclass-protection-controller"),
    ("ephemeral-volume-controller", "ephemeral-volume"),
    ("persistentvolume-expander-controller", "persistentvolume-expander"),
];

impl Controllers {
    /// All of them, as `*` means.
    pub const ALL: Self = Self::every(true);
    /// None of them.
    pub const NONE: Self = Self::every(false);

    const fn every(on: bool) -> Self {
        Self {
            binder: on,
            claim_protection: on,
            volume_protection: on,
            attributes_class_protection: on,
            ephemeral: on,
            expander: on,
        }
    }

    /// Reads a list such as `*,-pvc-protection`; a controller that is named stands over the star.
    pub fn parse<'a>(list: impl IntoIterator<Item = &'a str>) -> anyhow::Result<Self> {
        let list: Vec<&str> = list.into_iter().map(str::trim).filter(|name| !name.is_empty()).collect();
        for name in &list {
            let bare = name.strip_prefix('-').unwrap_or(name);
            if bare != "*" && !NAMES.iter().any(|(canonical, alias)| bare == *canonical || bare == *alias) {
                let known: Vec<&str> = NAMES.iter().map(|(canonical, _)| *canonical).collect();
                bail!("--controllers {bare:?} is not a controller of this program, which has {}", known.join(", "));
            }
        }
        if !list.iter().any(|name| !name.starts_with('-')) {
            let said = list.join(",");
            bail!(
                "--controllers {said:?} would run nothing: name those that are to run, or begin with * for all others"
            );
        }
        let on = |(canonical, alias): (&str, &str)| {
            for name in &list {
                let bare = name.strip_prefix('-').unwrap_or(name);
                if bare == canonical || bare == alias {
                    return !name.starts_with('-');
                }
            }
            list.contains(&"*")
        };
        let [binder, claims, volumes, classes, ephemeral, expander] = NAMES.map(on);
        Ok(Self {
            binder,
            claim_protection: claims,
            volume_protection: volumes,
            attributes_class_protection: classes,
            ephemeral,
            expander,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Controllers {
        Controllers::parse(list.split(',')).unwrap()
    }

    #[test]
    fn a_star_means_all_and_a_minus_takes_one_away() {
        assert_eq!(parse("*"), Controllers::ALL);
        assert_eq!(parse("*,-pvc-protection"), Controllers { claim_protection: false, ..Controllers::ALL });
        assert_eq!(parse("-ephemeral-volume-controller,*"), Controllers { ephemeral: false, ..Controllers::ALL });
    }

    #[test]
    fn only_what_is_named_runs_without_a_star_under_either_name() {
        let binder = Controllers { binder: true, ..Controllers::NONE };
        assert_eq!(parse("persistentvolume-binder-controller"), binder);
        assert_eq!(parse("persistentvolume-binder"), binder);
        assert_eq!(parse("persistentvolume-expander"), Controllers { expander: true, ..Controllers::NONE });
    }

    #[test]
    fn a_list_that_names_none_to_run_is_refused() {
        for list in ["-*", "", "-pvc-protection"] {
            let error = Controllers::parse(list.split(',')).unwrap_err().to_string();
            assert!(error.contains("would run nothing") && error.contains(list), "{error}");
        }
    }

    #[test]
    fn a_controller_of_somebody_else_is_named_with_the_way_out() {
        let error = Controllers::parse(["*", "-node-ipam-controller"]).unwrap_err().to_string();
        assert!(
            error.contains("node-ipam-controller") && error.contains("persistentvolume-binder-controller"),
            "{error}"
        );
    }
}
