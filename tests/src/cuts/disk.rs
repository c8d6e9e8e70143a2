//! A file system whose power can be cut: ext4 in an image in memory, mounted through a loop device.
//!
//! The cut is ext4's own shutdown without a flush of its journal: from then on the file system does
//! nothing any more, and what it held in memory only is gone with the mount. What had reached the
//! image stays. Needs root; see [`may_mount`].

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Process, read_line};
use crate::wallclock::poll_until;

/// Bytes of the image.
const IMAGE_LEN: u64 = 512 << 20;
/// Bytes of memory in which it lies: all of it, and what the file system there needs.
const MEMORY_MIB: u32 = 520;
const PACE: Duration = Duration::from_millis(100);
/// How long the helper may take to answer, and an unmount may fail.
const PATIENCE: Duration = Duration::from_mins(2);
/// Waits for a byte, then calls `EXT4_IOC_SHUTDOWN` (`_IOR('X', 125, u32)`) with
/// `EXT4_GOING_FLAGS_NOLOGFLUSH` (2). Beside the test, because an ioctl is no safe code.
const HELPER: &str = r#"
$| = 1;
sysopen(D, $ARGV[0], 0) or die "open: $!";
print "ready\n";
while (<STDIN>) {
    my $flags = pack("L", 2);
    print defined(ioctl(D, 0x8004587d, $flags)) ? "cut\n" : "failed: $!\n";
}
"#;

/// Whether this process may mount file systems. The tests that need it fail where it may not; who
/// runs them by hand on such a machine leaves them out with `POWER_CUTS=skip`.
pub fn may_mount() -> Result<bool> {
    if std::env::var("POWER_CUTS").as_deref() == Ok("skip") {
        return Ok(false);
    }
    ensure!(
        rustix::process::geteuid().is_root(),
        "power cuts need root, a loop device, mkfs.ext4 and perl; POWER_CUTS=skip leaves them out"
    );
    Ok(true)
}

/// A disk of 512 MiB, of which memory is taken as it is written. Unmounted and gone when dropped.
#[derive(Debug)]
pub struct CutDisk {
    dir: tempfile::TempDir,
    helper: Option<Helper>,
    mounted: bool,
}

#[derive(Debug)]
struct Helper {
    process: Process,
    stdin: ChildStdin,
    stdout: ChildStdout,
}

impl CutDisk {
    /// A disk with an empty file system, not mounted.
    pub fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("power-cut-").tempdir()?;
        for name in ["memory", "disk"] {
            fs::create_dir(dir.path().join(name))?;
        }
        let disk = Self {
            dir,
            helper: None,
            mounted: false,
        };
        let size = format!("size={MEMORY_MIB}m");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]);
        run(mount.arg(disk.path("memory")))?;
        disk.format()?;
        Ok(disk)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where things lie that are not on the disk.
    pub fn beside(&self) -> &Path {
        self.dir.path()
    }

    /// Makes an empty file system in the place of what was there.
    pub fn format(&self) -> Result<()> {
        ensure!(!self.mounted, "it is mounted");
        let image = self.path("memory").join("image");
        if image.exists() {
            fs::remove_file(&image)?;
        }
        File::create(&image)?.set_len(IMAGE_LEN)?;
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-E", "lazy_itable_init=0,nodiscard"]);
        run(mkfs.arg(&image))
    }

    /// Mounts it; where.
    pub fn mount(&mut self) -> Result<PathBuf> {
        let at = self.path("disk");
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", "loop"]);
        run(mount.arg(self.path("memory").join("image")).arg(&at))?;
        self.mounted = true;
        self.helper = Some(Helper::start(&at)?);
        Ok(at)
    }

    /// Cuts the power; it has no effect any more when this returns.
    pub fn cut(&mut self) -> Result<()> {
        let helper = self.helper.as_mut().context("it is not mounted")?;
        helper.stdin.write_all(b"\n")?;
        let said = read_line(&mut helper.stdout, PATIENCE)?;
        ensure!(said == "cut", "EXT4_IOC_SHUTDOWN {said}");
        Ok(())
    }

    /// Unmounts it. Nobody may hold a file of it open.
    pub fn unmount(&mut self) -> Result<()> {
        self.close_helper();
        // Somebody may look at a file for a moment.
        let mut outcome = Ok(());
        poll_until(PATIENCE, PACE, || {
            outcome = run(Command::new("umount").arg(self.path("disk")));
            outcome.is_ok()
        });
        outcome?;
        self.mounted = false;
        Ok(())
    }

    fn close_helper(&mut self) {
        if let Some(mut helper) = self.helper.take() {
            helper.process.kill().ok();
        }
    }
}

impl Drop for CutDisk {
    fn drop(&mut self) {
        self.close_helper();
        // Lazily: a process that still ends may hold files open. The loop device goes with it.
        if self.mounted {
            let mut umount = Command::new("umount");
            umount.arg("-l").arg(self.path("disk")).status().ok();
        }
        let mut umount = Command::new("umount");
        umount.arg("-l").arg(self.path("memory")).status().ok();
    }
}

impl Helper {
    fn start(at: &Path) -> Result<Self> {
        let mut command = Command::new("perl");
        command.args(["-e", HELPER]).arg(at);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::new(command.spawn().context("perl")?);
        let stdin = process.child().stdin.take().context("no input")?;
        let stdout = process.child().stdout.take().context("no output")?;
        let mut helper = Self {
            process,
            stdin,
            stdout,
        };
        let said = read_line(&mut helper.stdout, PATIENCE)?;
        ensure!(said == "ready", "the helper said {said}");
        Ok(helper)
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {said}", output.status);
    }
    Ok(())
}
