//! What images weigh and what containers need, as a table for people.

use std::fmt::Write as _;
use std::fs;

use anyhow::Context as _;

use crate::stack::Stack;

/// Resident memory of each service at one moment, in KiB.
pub type Memory = Vec<(String, u64)>;

/// What the kernel says each service's process has in memory now.
pub async fn memory(stack: &Stack) -> anyhow::Result<Memory> {
    let mut found = Vec::new();
    for service in stack.running() {
        let pid = stack.process(service).await?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("cannot read a process's status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in a status")?;
        let kib = line.trim().trim_end_matches(" kB").trim().parse().with_context(|| format!("VmRSS {line:?}"))?;
        found.push((service.to_owned(), kib));
    }
    Ok(found)
}

/// The table of docs/deploy.md.
pub async fn render(stack: &Stack, idle: &Memory, busy: &Memory, volumes: usize) -> anyhow::Result<String> {
    let mut text = format!("| service | image MB | idle MiB | with {volumes} volumes MiB |\n|---|---:|---:|---:|\n");
    for ((service, idle), (_, busy)) in idle.iter().zip(busy) {
        let megabytes = stack.engine.image_bytes(stack.image(service)).await? as f64 / 1e6;
        let mebibytes = |kib: &u64| *kib as f64 / 1024.0;
        writeln!(text, "| {service} | {megabytes:.1} | {:.1} | {:.1} |", mebibytes(idle), mebibytes(busy))?;
    }
    Ok(text)
}
