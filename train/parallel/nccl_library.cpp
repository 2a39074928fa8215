#include "train/parallel/nccl_library.h"

#include <dlfcn.h>

#include "kernels/base/check.h"
#include "train/parallel/transports.h"

namespace tessera {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr int kOldestVersion = NCCL_VERSION(2, 18, 1);  // nonblocking communicators work from this version on

struct Loaded {
  NcclLibrary library{};
  std::string why_not;
};

std::string load(NcclLibrary& library) {
  // By name, in the folders of the loader; then in the folder of the build.
  void* handle = dlopen(kLibrary, RTLD_NOW);
  const std::string why = handle == nullptr ? dlerror() : "";
  if (handle == nullptr) handle = dlopen(TESSERA_NCCL_FOLDER "/libnccl.so.2", RTLD_NOW);
  if (handle == nullptr)
    return fmt::format(
        "cannot load {} ({}). Install NVIDIA's package libnccl2, version 2.18 or later, or add the library's "
        "folder to LD_LIBRARY_PATH",
        kLibrary, why);
  std::string missing;
  const auto find = [&]<class Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) missing = name;
  };
  find("ncclGetVersion", library.get_version);
  find("ncclGetErrorString", library.error_string);
  find("ncclGetLastError", library.last_error);
  find("ncclGetUniqueId", library.get_unique_id);
  find("ncclCommInitRankConfig", library.init);
  find("ncclCommGetAsyncError", library.async_error);
  find("ncclCommFinalize", library.finalize);
  find("ncclCommDestroy", library.destroy);
  find("ncclCommAbort", library.abort);
  find("ncclAllReduce", library.all_reduce);
  find("ncclReduceScatter", library.reduce_scatter);
  find("ncclAllGather", library.all_gather);
  find("ncclSend", library.send);
  find("ncclRecv", library.receive);
  find("ncclGroupStart", library.group_start);
  find("ncclGroupEnd", library.group_end);
  int version = 0;
  if (missing.empty() && library.get_version(&version) == ncclSuccess && version >= kOldestVersion) return "";
  return fmt::format(
      "NCCL is too old: found version {}{}, it must be 2.18 or later. Install a newer package libnccl2",
      version, missing.empty() ? "" : " without " + missing);
}

const Loaded& loaded() {
  static const Loaded once = [] {
    Loaded l;
    l.why_not = load(l.library);
    return l;
  }();
  return once;
}

}  // namespace

bool nccl_available(std::string& why_not) {
  why_not = loaded().why_not;
  return why_not.empty();
}

const NcclLibrary& nccl_library() {
  check(loaded().why_not.empty(), "several ranks on CUDA communicate through NCCL: {}", loaded().why_not);
  return loaded().library;
}

}  // namespace tessera
