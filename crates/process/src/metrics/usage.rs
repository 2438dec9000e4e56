//! What this process takes of the machine, under the names of Prometheus' own clients.

use std::fs;
use std::io;
use std::sync::atomic::AtomicU64;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;
use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Metrics;

type Number = Gauge<f64, AtomicU64>;

#[derive(Clone, Default)]
struct Usage {
    cpu_seconds: Counter<f64, AtomicU64>,
    open_fds: Number,
    max_fds: Number,
    virtual_memory: Number,
    max_virtual_memory: Number,
    resident_memory: Number,
}

impl Metrics {
    /// Shows from now on what this process takes of the machine. Only for who has a process of his own: the kernel is
    /// asked, and not a port.
    pub fn watch_this_process(&self) {
        let usage = self.own(Usage::register);
        // What the kernel does not tell now it may tell the next time.
        self.before_encoding(move || {
            _ = usage.look();
            true
        });
    }
}

impl Usage {
    fn register(&self, r: &mut Registry) {
        let cpu = "Total user and system CPU time spent in seconds";
        r.register("process_cpu_seconds", cpu, self.cpu_seconds.clone());
        for (name, says, gauge) in [
            ("process_open_fds", "Number of open file descriptors", &self.open_fds),
            ("process_max_fds", "Maximum number of open file descriptors", &self.max_fds),
            ("process_virtual_memory_bytes", "Virtual memory size in bytes", &self.virtual_memory),
            (
                "process_virtual_memory_max_bytes",
                "Maximum amount of virtual memory available in bytes",
                &self.max_virtual_memory,
            ),
            ("process_resident_memory_bytes", "Resident memory size in bytes", &self.resident_memory),
        ] {
            r.register(name, says, gauge.clone());
        }
    }

    fn look(&self) -> io::Result<()> {
        let used = getrusage(UsageWho::RUSAGE_SELF)?;
        let spent = (used.user_time() + used.system_time()).num_microseconds() as f64 / 1e6;
        self.cpu_seconds.inc_by((spent - self.cpu_seconds.get()).max(0.0));
        self.max_fds.set(getrlimit(Resource::RLIMIT_NOFILE)?.0 as f64);
        self.max_virtual_memory.set(getrlimit(Resource::RLIMIT_AS)?.0 as f64);
        self.open_fds.set(fs::read_dir("/proc/self/fd")?.count() as f64);
        let page = sysconf(SysconfVar::PAGE_SIZE)?.unwrap_or_default() as f64;
        let pages = fs::read_to_string("/proc/self/statm")?;
        let mut pages = pages.split(' ').map_while(|number| number.parse::<f64>().ok());
        for gauge in [&self.virtual_memory, &self.resident_memory] {
            gauge.set(pages.next().unwrap_or_default() * page);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Format;

    #[test]
    fn the_numbers_of_a_process_have_the_names_and_types_of_prometheus_own_clients() {
        let metrics = Metrics::default();
        metrics.watch_this_process();
        let text = metrics.encode_as(Format::Text);
        let read = |name: &str, kind: &str| -> f64 {
            assert!(text.contains(&format!("\n# TYPE {name} {kind}\n")), "{name} in\n{text}");
            let values: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(&format!("{name} "))).collect();
            let [value] = values[..] else { panic!("{values:?} of {name} in\n{text}") };
            value.parse().unwrap()
        };
        let cpu = read("process_cpu_seconds_total", "counter");
        let (open, most) = (read("process_open_fds", "gauge"), read("process_max_fds", "gauge"));
        let resident = read("process_resident_memory_bytes", "gauge");
        let all = read("process_virtual_memory_bytes", "gauge");
        assert!(open >= 3.0 && open <= most, "{open} of {most}");
        assert!(resident >= 100_000.0 && resident < all, "{resident} of {all}");
        assert!(all <= read("process_virtual_memory_max_bytes", "gauge"));
        // Spends some, and a second look adds only what was spent since.
        let begin = getrusage(UsageWho::RUSAGE_SELF).unwrap().user_time();
        while getrusage(UsageWho::RUSAGE_SELF).unwrap().user_time() == begin {
            std::hint::spin_loop();
        }
        let later = metrics.encode();
        let line = later.lines().find_map(|line| line.strip_prefix("process_cpu_seconds_total ")).unwrap();
        let used = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        let spent = (used.user_time() + used.system_time()).num_microseconds() as f64 / 1e6;
        let counted: f64 = line.parse().unwrap();
        assert!(cpu < counted && counted <= spent, "{cpu}, then {counted} of {spent}");
    }

    #[test]
    fn who_has_no_process_of_his_own_shows_nothing_of_it() {
        assert!(!Metrics::default().encode().contains("process_open_fds"));
    }
}
