//! The keeper of a node: a shell that starts Kafka and outlives whoever asked for it, just long enough to clean up.
//!
//! A static is never dropped and a SIGKILL runs no destructor, so this process cannot promise to stop what it
//! started. The keeper can: it reads commands from a pipe that only this process holds, and the end of that pipe,
//! which the kernel guarantees, ends Kafka and removes its data.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::BrokerOptions;

/// Each command is a line, and each answer is: an exit status, or the process id for `spawn`.
///
/// The shell's own signals lead to `end` too. The traps are reset in what it starts.
const SCRIPT: &str = r#"
dir=$1 java=$2 class_path=$3 heap_mib=$4 compiler_tier=$5 cluster_id=$6
shift 6 # What is left are further arguments of the format.
cd "$dir" || exit 1
pid=
end_kafka() {
    [ -z "$pid" ] || { kill -KILL "$pid"; wait "$pid"; }
    pid=
}
trap 'end_kafka; cd /; rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM PIPE

while read -r command; do
    case $command in
    format)
        "$java" -Xmx256m -XX:TieredStopAtLevel=1 -cp "$class_path" kafka.tools.StorageTool \
            format --cluster-id "$cluster_id" --config server.properties "$@" </dev/null >>kafka.log 2>&1
        ;;
    spawn)
        "$java" "-Xmx${heap_mib}m" "-XX:TieredStopAtLevel=$compiler_tier" \
            -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 \
            -Djava.awt.headless=true -Dorg.slf4j.simpleLogger.showDateTime=true \
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS" \
            -cp "$class_path" kafka.Kafka server.properties </dev/null >>kafka.log 2>&1 &
        pid=$!
        echo "$pid"
        continue
        ;;
    kill) end_kafka ;;
    freeze) kill -STOP "$pid" ;;
    thaw) kill -CONT "$pid" ;;
    # `jobs` reaps: a process that has ended would else still take signals.
    is_alive) jobs >/dev/null; kill -0 "$pid" ;;
    esac
    echo $?
done
"#;

#[derive(Debug)]
pub(super) struct Keeper {
    shell: Child,
    /// None only while it is dropped.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    pid: Option<u32>,
}

impl Keeper {
    /// Starts the keeper of the node in `dir`, which it removes at its end. Kafka itself starts with `spawn`.
    pub(super) fn start(
        dir: &Path,
        java: &Path,
        class_path: &str,
        options: &BrokerOptions,
        format_args: &[String],
    ) -> io::Result<Self> {
        // The JVM's quick compiler, or its optimizing one too.
        let compiler_tier = if options.short_lived { 1 } else { 4 };
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "seriatim-keeper"])
            .args([dir, java, Path::new(class_path)])
            .args([options.heap_mib.to_string(), compiler_tier.to_string()])
            .arg(super::CLUSTER_ID)
            .args(format_args)
            // Away from the terminal's Ctrl-C, and from a kill of our process group.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let commands = shell.stdin.take();
        let answers = BufReader::new(shell.stdout.take().expect("the shell's output is piped"));
        Ok(Self {
            shell,
            commands,
            answers,
            pid: None,
        })
    }

    /// Begins to format the storage; [`Keeper::await_format`] takes the answer.
    pub(super) fn begin_format(&mut self) -> io::Result<()> {
        self.command("format")
    }

    /// False when Kafka refused; its log says why.
    pub(super) fn await_format(&mut self) -> io::Result<bool> {
        Ok(self.answer()? == 0)
    }

    pub(super) fn spawn(&mut self) -> io::Result<()> {
        self.command("spawn")?;
        self.pid = Some(self.answer()?);
        Ok(())
    }

    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.pid = None;
        self.ask("kill").map(|_| ())
    }

    pub(super) fn freeze(&mut self) -> io::Result<()> {
        self.signal("freeze")
    }

    pub(super) fn thaw(&mut self) -> io::Result<()> {
        self.signal("thaw")
    }

    pub(super) fn is_alive(&mut self) -> io::Result<bool> {
        Ok(self.ask("is_alive")? == 0)
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.pid
    }

    fn signal(&mut self, command: &str) -> io::Result<()> {
        match self.ask(command)? {
            0 => Ok(()),
            _ => Err(io::Error::other("Kafka is not running")),
        }
    }

    fn ask(&mut self, command: &str) -> io::Result<u32> {
        self.command(command)?;
        self.answer()
    }

    fn command(&mut self, command: &str) -> io::Result<()> {
        let pipe = self.commands.as_mut().expect("the pipe is open until the drop");
        writeln!(pipe, "{command}")
    }

    fn answer(&mut self) -> io::Result<u32> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        line.trim()
            .parse()
            .map_err(|_| io::Error::other("the keeper's shell has ended"))
    }
}

impl Drop for Keeper {
    /// Ends Kafka and waits until nothing of it is left.
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.shell.wait();
    }
}
