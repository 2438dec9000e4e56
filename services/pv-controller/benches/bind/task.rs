//! One run in a process of its own: what the heap looks like after other runs is not what is measured.

use serde::{Deserialize, Serialize};

use crate::run::Run;
use crate::world::{Server, Shape, World};

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Work {
    /// The server's own writes.
    Raw,
    /// Claims that wait for the controller.
    Waiting,
    /// This many claims that come while it runs.
    Arriving(usize),
    /// This many claims, one after the other.
    Alone(usize),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Task {
    pub server: Server,
    pub work: Work,
    pub shape: Shape,
    pub pairs: usize,
    /// So many Released volumes and unmatchable claims beside them.
    pub background: usize,
}

impl Task {
    /// The word before a task on the command line.
    pub const WORD: &str = "--task";

    pub async fn measure(self) -> Run {
        let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
        command.arg(Self::WORD).arg(serde_json::to_string(&self).unwrap());
        let output = command.stderr(std::process::Stdio::inherit()).kill_on_drop(true).output().await.unwrap();
        assert!(output.status.success(), "{self:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What the process does that was started for it.
    pub async fn carry_out(self) -> Run {
        let world = World::start(self.server).await;
        world.fill_background(self.background).await;
        let run = match self.work {
            Work::Raw => world.raw_rate(self.shape, self.pairs).await,
            Work::Waiting => world.bind_waiting(self.shape, self.pairs).await,
            Work::Arriving(count) => world.bind_arriving(self.shape, self.pairs, count).await,
            Work::Alone(count) => world.bind_one_by_one(self.shape, count).await,
        };
        world.end().await;
        run
    }
}
