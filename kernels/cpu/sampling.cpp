#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {

void run(const SampleTokens& a, const Launch& /*on*/) { fail("{}: the CPU cannot do this yet", a.kName); }

}  // namespace tessera::cpu
