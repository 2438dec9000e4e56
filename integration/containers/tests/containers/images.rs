use anyhow::ensure;

use container_suite::compose::Compose;
use container_suite::machine::with_engine;

#[test]
fn every_image_says_what_it_is_and_from_which_source_it_was_made() -> anyhow::Result<()> {
    with_engine(async |engine| {
        for (service, spec) in Compose::shipped()?.services {
            let labels = engine.labels(&spec.image).await?;
            for name in ["title", "description", "licenses", "version", "revision", "created"] {
                let value = labels.get(&format!("org.opencontainers.image.{name}"));
                ensure!(value.is_some_and(|value| !value.is_empty()), "{service}: {} has no {name}", spec.image);
            }
        }
        Ok(())
    })
}
