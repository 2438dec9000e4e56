//! A fault that hits claims at every moment of their lives at once.

use anyhow::Context as _;
use futures::future::try_join_all;

use crate::checker;
use crate::life::{Life, Step};
use crate::stack::Stack;

/// One claim stands before each step of its life and one on each node is in use; all steps are begun, the fault strikes
/// before they are done, and when it is over the lives go on to their second pods and then to their end. What must
/// never be is looked for all the time, the rest while most are mounted, and nothing may be left in the end.
pub async fn strike(stack: &Stack, name: &str, fault: impl AsyncFnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let life = |what: &str| Life::new(stack, format!("{name}-{}", what.to_lowercase()));
    let lives = Step::ALL.map(|step| (step, life(&format!("{step:?}"))));
    let kept = [life("kept"), life("kept-too").reversed()];
    let struck = async {
        try_join_all(kept.iter().map(|life| life.up_to(Step::EndFirstPod))).await?;
        try_join_all(lives.iter().map(|(step, life)| life.up_to(*step))).await?;
        try_join_all(lives.iter().map(|(step, life)| life.begin(*step))).await?;
        fault().await.context("the fault itself")?;
        try_join_all(lives.iter().map(|(step, life)| life.between(*step, Step::SecondPod))).await?;
        try_join_all(kept.iter().map(Life::check_first)).await?;
        checker::at_rest(stack).await.context("with volumes in use")?;
        let ends = lives.iter().map(|(step, life)| life.after((*step).max(Step::SecondPod)));
        try_join_all(ends).await?;
        try_join_all(kept.iter().map(Life::end_first)).await?;
        checker::nothing_left(stack).await
    };
    checker::watched(stack, struck).await.with_context(|| format!("after {name}"))
}
