// Root may read and write everywhere, which would hide what a test of permissions looks for.
#pragma once

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <stdexcept>

namespace tessera::testing {

constexpr __u32 kRightsOverFiles = 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH | 1u << CAP_FOWNER;

// Of this thread: whether it worked.
inline bool rights(long call, __user_cap_data_struct (&sets)[2]) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  return syscall(call, &header, sets) == 0;
}

// While it lives, this thread has no right to read and write everywhere, as an ordinary user has none.
class WithoutRightsOverFiles {
 public:
  WithoutRightsOverFiles() {
    if (!rights(SYS_capget, before_)) throw std::runtime_error("capget failed");
    __user_cap_data_struct less[2] = {before_[0], before_[1]};
    less[0].effective &= ~kRightsOverFiles;
    if (!rights(SYS_capset, less)) throw std::runtime_error("capset failed");
  }
  ~WithoutRightsOverFiles() { rights(SYS_capset, before_); }
  WithoutRightsOverFiles(const WithoutRightsOverFiles&) = delete;
  WithoutRightsOverFiles& operator=(const WithoutRightsOverFiles&) = delete;

 private:
  __user_cap_data_struct before_[2];
};

// For good, and for the programs that this process becomes. The user stays the same: the owner's folders stay
// open.
inline bool give_up_rights_over_files() {
  __user_cap_data_struct sets[2];
  if (!rights(SYS_capget, sets)) return false;
  for (__u32* set : {&sets[0].effective, &sets[0].permitted, &sets[0].inheritable}) *set &= ~kRightsOverFiles;
  return rights(SYS_capset, sets) && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

}  // namespace tessera::testing
