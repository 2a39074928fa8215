// The calls of attention.h with blocks that queries choose
#pragma once

#include "kernels/attention/attention.h"

namespace tessera::attention::mixture {

AttnStatus forward(const AttnForward& f, int arch, CUstream_st* stream);
AttnStatus backward(const AttnBackward& f, int arch, CUstream_st* stream);

}  // namespace tessera::attention::mixture
