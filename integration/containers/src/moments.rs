//! A fault that hits claims at every moment of their lives at once.

use anyhow::Context as _;
use futures::future::try_join_all;

use crate::checker;
use crate::life::{Life, Step};
use crate::stack::Stack;

/// One claim stands before each step of its life; all steps are begun, the fault strikes before they are done, and
/// when it is over all lives go on to their end. Nothing may be wrong on the way and nothing left in the end.
pub async fn strike(stack: &Stack, name: &str, fault: impl AsyncFnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let life = |step: Step| Life::new(stack, format!("{name}-{}", format!("{step:?}").to_lowercase()));
    let lives = Step::ALL.map(|step| (step, life(step)));
    try_join_all(lives.iter().map(async |(step, life)| life.up_to(*step).await)).await?;
    try_join_all(lives.iter().map(async |(step, life)| life.begin(*step).await)).await?;
    fault().await.with_context(|| format!("{name}: the fault itself"))?;
    let ended = try_join_all(lives.iter().map(async |(step, life)| life.from(*step).await)).await;
    ended.with_context(|| format!("after {name}"))?;
    checker::nothing_left(stack).await.with_context(|| format!("after {name}"))
}
