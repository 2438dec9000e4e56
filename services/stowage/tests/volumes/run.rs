//! `stowage run`, the real program, against a stack in this process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use stowage_model::Claim;
use stowage_model::object::Key;

use crate::every_kind;
use crate::world::{World, examples, on_a_stack};

/// Longer than any command here takes on a machine that works.
const PATIENCE: Duration = Duration::from_secs(90);

/// A `stowage run` with its command.
struct Running {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Running {
    fn start(world: &World, args: &[&str], script: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_stowage"))
            .args(["run", "--root", world.root.to_str().unwrap()])
            .args(args)
            .args(["--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // In the foreground of a terminal it would take it that the command has heard ^C itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        tokio::time::timeout(PATIENCE, self.says.read_line(&mut line)).await.expect("nothing was said").unwrap();
        line.trim_end().to_owned()
    }

    /// What it says until every process that could say something has ended.
    async fn rest(&mut self) -> String {
        let mut rest = String::new();
        let read = tokio::time::timeout(PATIENCE, self.says.read_to_string(&mut rest)).await;
        read.expect("a process of the command is still there").unwrap();
        rest
    }

    async fn tell(&mut self, line: &str) {
        self.child.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().unwrap().try_into().unwrap()), signal).unwrap();
    }

    async fn ended(&mut self) -> Option<i32> {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it still runs").unwrap().code()
    }
}

/// The pod of every kind, with its volumes below a directory of the test, and what it needs.
fn every_kind(world: &World, seen: &Path) -> (Value, Vec<Value>) {
    let local = world.read(&examples().join("volumes/local.yaml"));
    let mut objects = every_kind::objects(world.read(&examples().join("volumes-of-every-kind.yaml")), local);
    let mut pod = objects.pop().unwrap();
    let below = |path: &Value| json!(format!("{}{}", seen.display(), path.as_str().unwrap()));
    pod["spec"]["volumes"].as_array_mut().unwrap().extend([
        json!({ "name": "inline", "csi": { "driver": world.driver(), "volumeAttributes": { "size": "24Mi" } } }),
        json!({ "name": "folder", "hostPath": { "path": world.root.join("link") } }),
    ]);
    let container = &mut pod["spec"]["containers"][0];
    container["env"] = json!([{ "name": "KEY", "value": "greeting" }]);
    container["volumeMounts"].as_array_mut().unwrap().extend([
        json!({ "name": "config", "mountPath": "/one/greeting", "subPath": "greeting" }),
        json!({ "name": "config", "mountPath": "/two/greeting", "subPathExpr": "$(KEY)" }),
        json!({ "name": "scratch", "mountPath": "/files/inner/most" }),
        json!({ "name": "scratch", "mountPath": "/kept", "readOnly": true }),
        json!({ "name": "inline", "mountPath": "/inline" }),
        json!({ "name": "folder", "mountPath": "/folder" }),
    ]);
    for mount in container["volumeMounts"].as_array_mut().unwrap() {
        mount["mountPath"] = below(&mount["mountPath"]);
    }
    container["volumeDevices"][0]["devicePath"] = below(&container["volumeDevices"][0]["devicePath"]);
    (pod, objects)
}

fn written(at: &Path, pod: &Value) -> PathBuf {
    let file = at.join("pod.yaml");
    // JSON is YAML.
    fs::write(&file, pod.to_string()).unwrap();
    file
}

const LOOK: &str = r#"
cd "$SEEN"
cat config/greeting one/greeting two/greeting secret/password about/labels
echo; cat about/memory; echo; cat together/greeting together/password; echo
tr -cd . < together/token; echo
cmp host /etc/hostname && echo same
cat image/sub/file; echo; cat disk/kept; echo
for mounted in files scratch memory flex inline; do stat -f -c "$mounted %T" $mounted; done
echo written > files/data; echo written > scratch/data; echo written > folder/data
cat files/inner/most/data kept/data
touch kept/x 2> /dev/null || echo kept is not written
touch image/x 2> /dev/null || echo image is not written
test -b dev/xvda && echo bytes | dd of=dev/xvda conv=notrunc status=none && head -c 5 dev/xvda; echo
cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo
echo first process: $(cat /proc/1/comm)
exit 9
"#;

const SEES: &str = "hello
hello
hello
secretapp=\"kinds\"
stowage.dev/run=\"true\"
67108864
hello
secret
..
same
from an image
kept
files ext2/ext3
scratch REST
memory tmpfs
flex tmpfs
inline ext2/ext3
written
written
kept is not written
image is not written
bytes
default
first process: stowage
";

#[test]
fn a_command_sees_volumes_of_every_kind_where_the_pod_of_a_file_has_them() {
    on_a_stack(async |world| {
        world.prepare();
        let seen = tempfile::tempdir().unwrap();
        let below = seen.path().join("seen");
        fs::create_dir(world.root.join("folder")).unwrap();
        std::os::unix::fs::symlink("folder", world.root.join("link")).unwrap();
        let (pod, others) = every_kind(world, &below);
        world.apply(&others).await;
        let file = written(seen.path(), &pod);
        let script = LOOK.replace("$SEEN", below.to_str().unwrap());
        let mut run = Running::start(world, &["--pod", file.to_str().unwrap()], &script);
        let said = run.rest().await;
        let scratch = said.lines().find_map(|line| line.strip_prefix("scratch ")).unwrap_or_default();
        assert_eq!(said, SEES.replace("REST", scratch), "what the command sees");
        assert_eq!(run.ended().await, Some(9));
        assert_eq!(fs::read_to_string(world.root.join("folder/data")).unwrap(), "written\n");
        assert!(!below.try_exists().unwrap(), "the places of the volumes are left");
        assert!(world.pods().is_empty(), "its pod is left");
        world.delete(&others).await;
    });
}

#[test]
fn signals_reach_the_command_and_its_exit_code_is_the_runs() {
    on_a_stack(async |world| {
        let seen = tempfile::tempdir().unwrap();
        let claim = format!("signals:{}:ro", seen.path().join("data").display());
        let args = ["--claim", &claim, "--size", "16Mi"];
        for (signal, name, code) in [(Signal::SIGINT, "INT", 7), (Signal::SIGTERM, "TERM", 8)] {
            // It takes its time to end, and is given it.
            let script =
                format!("trap 'echo told; read end; exit {code}' {name}; echo ready; while :; do sleep 0.05; done");
            let mut run = Running::start(world, &args, &script);
            assert_eq!(run.line().await, "ready");
            run.signal(signal);
            assert_eq!(run.line().await, "told");
            run.tell("end").await;
            assert_eq!(run.ended().await, Some(code), "{name}");
        }
        // One that does nothing about it.
        let mut run = Running::start(world, &args, "echo ready; exec sleep 600");
        assert_eq!(run.line().await, "ready");
        run.signal(Signal::SIGTERM);
        assert_eq!(run.ended().await, Some(128 + 15));
        assert!(!seen.path().join("data").try_exists().unwrap());
        let key = Key::namespaced("default", "signals");
        let claim = world.stack.api.get::<Claim>(&key).await.unwrap().expect("the claim stays without --rm");
        world
            .delete(&[json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata":
            { "name": claim.meta.name, "namespace": "default" } })])
            .await;
    });
}

#[test]
fn nothing_outlives_a_run_that_is_killed_not_its_processes_nor_its_claims_nor_its_places() {
    on_a_stack(async |world| {
        let seen = tempfile::tempdir().unwrap();
        let path = seen.path().join("a/data");
        let claim = format!("killed:{}", path.display());
        // A child in a session of its own, as daemons have it, that says nothing and would write for ever.
        let script = format!(
            "setsid sh -c 'while :; do echo x >> {0}/log; sleep 0.05; done' & echo ready; wait",
            path.display()
        );
        let mut run = Running::start(world, &["--claim", &claim, "--size", "16Mi", "--rm"], &script);
        assert_eq!(run.line().await, "ready");
        let pod = world.pods().pop().unwrap();
        run.signal(Signal::SIGKILL);
        // Its end of the pipe is closed when the last process is gone.
        assert_eq!(run.rest().await, "");
        assert!(!seen.path().join("a").try_exists().unwrap(), "the places of the volumes are left");
        world.gone(&pod).await;
        let left = world.stack.api.get::<Claim>(&Key::namespaced("default", "killed")).await.unwrap();
        assert!(left.is_none_or(|claim| claim.meta.is_deleting()), "a claim that was to go stays");
    });
}

#[test]
fn one_that_is_ended_while_it_waits_for_a_volume_leaves_neither_pod_nor_claims() {
    on_a_stack(async |world| {
        let seen = tempfile::tempdir().unwrap();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "spec": {
                "containers": [{ "volumeMounts": [{ "name": "never", "mountPath": seen.path().join("never") }] }],
                "volumes": [{ "name": "never", "configMap": { "name": "never" } }],
            },
        });
        let (file, claim) = (written(seen.path(), &pod), format!("waits:{}", seen.path().join("data").display()));
        let args = ["--pod", file.to_str().unwrap(), "--claim", &claim, "--size", "16Mi", "--rm"];
        let key = Key::namespaced("default", "waits");
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let mut run = Running::start(world, &args, "echo started");
            let made = world.until(|| !world.pods().is_empty());
            tokio::time::timeout(PATIENCE, made).await.expect("it makes no pod");
            run.signal(signal);
            assert_eq!((run.rest().await.as_str(), run.ended().await), ("", Some(1)), "{signal}");
            let left = world.stack.api.get::<Claim>(&key).await.unwrap();
            assert!(left.is_none_or(|claim| claim.meta.is_deleting()), "a claim that was to go stays");
            for pod in world.pods() {
                world.gone(&pod).await;
            }
        }
        assert!(!seen.path().join("never").try_exists().unwrap());
    });
}

#[test]
fn the_example_is_what_it_says() {
    on_a_stack(async |world| {
        let file = examples().join("run.yaml");
        let script =
            "cd /mnt/stowage; cat about/namespace; echo; stat -f -c %T memory; date > memory/now && echo written";
        let mut run = Running::start(world, &["--pod", file.to_str().unwrap()], script);
        assert_eq!(run.rest().await, "default\ntmpfs\nwritten\n");
        assert_eq!(run.ended().await, Some(0));
        assert!(!Path::new("/mnt/stowage").try_exists().unwrap());
    });
}

#[test]
fn one_that_ends_takes_nothing_from_another_at_the_same_place() {
    on_a_stack(async |world| {
        world
            .apply(&[json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "greeting": "hello" },
            "metadata": { "name": "same", "namespace": "default" } })])
            .await;
        let seen = tempfile::tempdir().unwrap();
        let path = seen.path().join("here");
        let file = written(
            seen.path(),
            &json!({
                "apiVersion": "v1", "kind": "Pod",
                "spec": {
                    "automountServiceAccountToken": false,
                    "containers": [{ "volumeMounts": [{ "name": "same", "mountPath": path }] }],
                    "volumes": [{ "name": "same", "configMap": { "name": "same" } }],
                },
            }),
        );
        let script = format!("echo ready; read go; cat {}/greeting", path.display());
        let start = || Running::start(world, &["--pod", file.to_str().unwrap()], &script);
        let (mut first, mut second) = (start(), start());
        assert_eq!((first.line().await, second.line().await), ("ready".to_owned(), "ready".to_owned()));
        for run in [&mut first, &mut second] {
            run.tell("go").await;
            assert_eq!(run.rest().await, "hello");
            assert_eq!(run.ended().await, Some(0));
        }
    });
}
