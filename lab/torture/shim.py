"""A server's view of time and of its disk, changed by a library of ours between it and the kernel.

The wall clock of a process can be set to another hour, and a power cut can take what it has written and not synced. The
library is C, loaded with LD_PRELOAD; where there is no compiler these faults miss, and say so.
"""

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* SHIM_FILE holds how many seconds the wall clock is off, how many ms a sync takes, whether the disk is full */

static volatile int64_t *controls;
#define OFF_S (controls ? controls[0] : 0)
#define SYNC_MS (controls ? controls[1] : 0)
#define FULL (controls ? controls[2] : 0)

__attribute__((constructor)) static void begin(void) {
  const char *name = getenv("SHIM_FILE");
  int fd = name ? open(name, O_RDONLY) : -1;
  if (fd >= 0) {
    void *page = mmap(NULL, 3 * sizeof *controls, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) controls = page;
    close(fd);
  }
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, at);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += OFF_S;
  return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
  int failed = real(at, zone);
  if (!failed) at->tv_sec += OFF_S;
  return failed;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

/* -- the disk: NAME.synced says how much of a log has been synced -- */

static int is_log(int fd, char *name, size_t room) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, name, room - 8);
  if (length <= 0) return 0;
  name[length] = 0;
  return strstr(name, ".incr.aof") != NULL;
}

ssize_t write(int fd, const void *bytes, size_t length) {
  static ssize_t (*real)(int, const void *, size_t);
  char name[4096];
  if (!real) real = dlsym(RTLD_NEXT, "write");
  if (FULL && is_log(fd, name, sizeof name)) {
    errno = ENOSPC;
    return -1;
  }
  return real(fd, bytes, length);
}

static void synced(int fd) {
  char name[4096];
  if (!is_log(fd, name, sizeof name)) return;
  if (SYNC_MS) usleep(SYNC_MS * 1000);
  struct stat found;
  if (fstat(fd, &found)) return;
  strcat(name, ".synced");
  int out = open(name, O_WRONLY | O_CREAT, 0600);
  if (out < 0) return;
  int64_t size = found.st_size;
  if (pwrite(out, &size, sizeof size, 0) < 0) {}
  close(out);
}

int fdatasync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
  int failed = real(fd);
  if (!failed) synced(fd);
  return failed;
}

int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  int failed = real(fd);
  if (!failed) synced(fd);
  return failed;
}
"""
_LOG: Final = "*.incr.aof"  # log files of Redis and Valkey
_SIZE: Final = struct.Struct("q")
_CONTROLS: Final = struct.Struct("3q")


class Shim:
    """The library, built in a folder. `available`: whether it could be built."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "shim.so"
        compiler = shutil.which("cc")
        self.available = compiler is not None
        if compiler is not None:
            source = folder / "shim.c"
            source.write_text(_SOURCE)
            argv = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(self._library), str(source), "-ldl"]
            self.available = subprocess.run(argv, capture_output=True).returncode == 0

    def environment(self, file: Path) -> dict[str, str]:
        """Return the variables that make a process load it; the file is for `set_controls`."""
        if not self.available:
            return {}
        set_controls(file)
        return {"LD_PRELOAD": str(self._library), "SHIM_FILE": str(file)}


def set_controls(file: Path, *, off_s: int = 0, sync_ms: int = 0, full: int = 0) -> None:
    """Set from now on how far a wall clock is off, how long a sync takes, and whether the disk is full."""
    with file.open("r+b" if file.exists() else "w+b") as out:
        out.write(_CONTROLS.pack(off_s, sync_ms, full))


def lose_unsynced(folder: Path) -> int:
    """Cut the logs of a killed server to the synced part, as a power cut would; return the number of lost bytes."""
    lost = 0
    for log in folder.rglob(_LOG):
        note = log.with_name(f"{log.name}.synced")
        synced = _SIZE.unpack(note.read_bytes())[0] if note.exists() else 0
        size = log.stat().st_size
        if synced < size:
            with log.open("r+b") as file:
                file.truncate(synced)
            lost += size - synced
    return lost
