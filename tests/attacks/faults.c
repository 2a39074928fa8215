/* Preloaded into a run, it counts the calls that change the files below a folder, and lets one of them fail
 * or end the process. TESSERA_FAULT_FOLDER   the folder, absolute TESSERA_FAULT_AT       the number of the
 * call, from 1; 0 counts alone TESSERA_FAULT          kill: SIGKILL, a write being half done; ENOSPC, EIO:
 * that call and all later ones fail, a write being half done; once-ENOSPC, once-EIO: that call alone
 *   TESSERA_FAULT_COUNT    a file that gets the number of calls when the process exits
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;
static const char *folder, *what;
static long at;
static int error_number, once;

__attribute__((constructor)) static void begin(void) {
  folder = getenv("TESSERA_FAULT_FOLDER");
  at = getenv("TESSERA_FAULT_AT") ? atol(getenv("TESSERA_FAULT_AT")) : 0;
  what = getenv("TESSERA_FAULT") ? getenv("TESSERA_FAULT") : "";
  once = strncmp(what, "once-", 5) == 0;
  error_number = strstr(what, "ENOSPC") ? ENOSPC : strstr(what, "EIO") ? EIO : 0;
}

__attribute__((destructor)) static void end(void) {
  const char* file = getenv("TESSERA_FAULT_COUNT");
  FILE* out = file ? fopen(file, "w") : NULL;
  if (!out) return;
  fprintf(out, "%ld\n", atomic_load(&calls));
  fclose(out);
}

static int below(const char* path) {
  const size_t length = folder ? strlen(folder) : 0;
  return length && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int fd_below(int fd) {
  char name[64], path[4096];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(name, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return below(path);
}

static int path_below(int fd, const char* path) {
  if (path[0] == '/') return below(path);
  if (fd != AT_FDCWD) return fd_below(fd);
  char here[4096];
  return getcwd(here, sizeof here) && below(here);
}

/* Whether this call is the one. It does not return where the process ends before the call does anything. */
static int strikes(int relevant, int is_write) {
  if (!relevant) return 0;
  const long number = atomic_fetch_add(&calls, 1) + 1;
  if (at == 0 || number < at || (number > at && (once || !error_number))) return 0;
  if (!error_number && !is_write) raise(SIGKILL);
  errno = error_number;
  return 1;
}

#define REAL(type, name, ...)       \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define OPEN_FOR_WRITING(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define OPEN(name)                                                                    \
  int name(const char* path, int flags, ...) {                                        \
    va_list list;                                                                     \
    va_start(list, flags);                                                            \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;     \
    va_end(list);                                                                     \
    REAL(int, #name, const char*, int, ...);                                          \
    if (strikes(OPEN_FOR_WRITING(flags) && path_below(AT_FDCWD, path), 0)) return -1; \
    return real(path, flags, mode);                                                   \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                              \
  int name(int fd, const char* path, int flags, ...) {                            \
    va_list list;                                                                 \
    va_start(list, flags);                                                        \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
    va_end(list);                                                                 \
    REAL(int, #name, int, const char*, int, ...);                                 \
    if (strikes(OPEN_FOR_WRITING(flags) && path_below(fd, path), 0)) return -1;   \
    return real(fd, path, flags, mode);                                           \
  }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                  \
  FILE* name(const char* path, const char* mode) {                                   \
    REAL(FILE*, #name, const char*, const char*);                                    \
    if (strikes(strpbrk(mode, "wa+") && path_below(AT_FDCWD, path), 0)) return NULL; \
    return real(path, mode);                                                         \
  }
FOPEN(fopen)
FOPEN(fopen64)

static ssize_t half(int fd, const void* data, size_t bytes) {
  REAL(ssize_t, "write", int, const void*, size_t);
  const ssize_t done = bytes > 1 ? real(fd, data, bytes / 2) : 0;
  if (!error_number) raise(SIGKILL);
  errno = error_number;
  return done > 0 ? done : -1;
}

ssize_t write(int fd, const void* data, size_t bytes) {
  REAL(ssize_t, "write", int, const void*, size_t);
  if (strikes(fd_below(fd), 1)) return half(fd, data, bytes);
  return real(fd, data, bytes);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
  REAL(ssize_t, "writev", int, const struct iovec*, int);
  if (strikes(fd_below(fd), 1)) return half(fd, parts[0].iov_base, parts[0].iov_len);
  return real(fd, parts, count);
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  REAL(ssize_t, "pwrite", int, const void*, size_t, off_t);
  if (strikes(fd_below(fd), 0)) return -1;
  return real(fd, data, bytes, offset);
}

#define OF_FD(name)                          \
  int name(int fd) {                         \
    REAL(int, #name, int);                   \
    if (strikes(fd_below(fd), 0)) return -1; \
    return real(fd);                         \
  }
OF_FD(fsync)
OF_FD(fdatasync)

#define OF_PATH(name)                                      \
  int name(const char* path) {                             \
    REAL(int, #name, const char*);                         \
    if (strikes(path_below(AT_FDCWD, path), 0)) return -1; \
    return real(path);                                     \
  }
OF_PATH(unlink)
OF_PATH(rmdir)
OF_PATH(remove)

int unlinkat(int fd, const char* path, int flags) {
  REAL(int, "unlinkat", int, const char*, int);
  if (strikes(path_below(fd, path), 0)) return -1;
  return real(fd, path, flags);
}

int mkdir(const char* path, mode_t mode) {
  REAL(int, "mkdir", const char*, mode_t);
  if (strikes(path_below(AT_FDCWD, path), 0)) return -1;
  return real(path, mode);
}

int rename(const char* from, const char* to) {
  REAL(int, "rename", const char*, const char*);
  if (strikes(path_below(AT_FDCWD, to), 0)) return -1;
  return real(from, to);
}

#define TRUNCATE(name, length_type)          \
  int name(int fd, length_type length) {     \
    REAL(int, #name, int, length_type);      \
    if (strikes(fd_below(fd), 0)) return -1; \
    return real(fd, length);                 \
  }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define TRUNCATE_PATH(name, length_type)                   \
  int name(const char* path, length_type length) {         \
    REAL(int, #name, const char*, length_type);            \
    if (strikes(path_below(AT_FDCWD, path), 0)) return -1; \
    return real(path, length);                             \
  }
TRUNCATE_PATH(truncate, off_t)
TRUNCATE_PATH(truncate64, off64_t)
